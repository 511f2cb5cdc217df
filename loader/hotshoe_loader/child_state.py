"""ProbeState: what the steps of one plugin's probe share. It also tests the devices of a provider."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from hotshoe_core.contract.device import Device, Provider
from hotshoe_loader import plugin_calls
from hotshoe_loader.canary import check_canary
from hotshoe_loader.contract_checks import memory_problem
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.policy import Policy
from hotshoe_loader.report import Job
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["Announce", "ProbeState"]

Announce = Callable[[str, str], None]
"""Called before each step that may end the process, with the step's name and what it does in words."""


class ProbeState:
    """The job of a probe, and what its earlier steps found."""

    def __init__(self, job: Job, announce: Announce) -> None:
        self.job = job
        self.plugin: EntryPoint = job.plugin
        self.policy = Policy(job.block, job.allow)
        self.damaged: dict[str, str] = {}
        """Native files that differ from what pip installed, by real path, each with what is wrong."""
        self.folders: dict[str, None] = {}
        """The folders that were searched for libraries, in order."""
        self._announce = announce

    def begin(self, step: str, doing: str) -> None:
        """Announce a step. Raise Rejected if an earlier child process ended at it."""
        if step in self.job.skip:
            raise self.job.skip[step]
        self._announce(step, doing)

    def test_devices(self, provider: Provider, library: Path | None) -> tuple[list[Device], list[Rejected]]:
        """Return the devices that pass their test, and why the others fail. Raise Rejected if no device passes."""
        passed: list[Device] = []
        failed: list[Rejected] = []
        for device in plugin_calls.list_devices(provider, library, self.plugin):
            try:
                self._check_memory(device)
                if not self.policy.blocks_device(device):  # nothing is computed on a blocked device
                    doing = f"computing on {device.name}"
                    self.begin(f"device:{library}:{device.name}", doing)
                    plugin_calls.guarded(partial(check_canary, provider, device), doing, self.plugin, Outcome.CRASHED)
                passed.append(device)
            except Rejected as rejected:
                failed.append(rejected)
        if not passed:
            raise failed[0]
        return passed, failed

    @staticmethod
    def _check_memory(device: Device) -> None:
        problem = memory_problem(device)
        if problem is not None:
            raise Rejected(
                Outcome.WRONG_RESULT,
                f"{device.name} reports {problem}",
                f"update the driver of {device.name}, or do not use it: HOTSHOE_BLOCK={device.name}",
            )
