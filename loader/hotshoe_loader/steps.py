"""What the steps of one plugin's trial share, whatever kind of libraries it brings; and the test of its devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from hotshoe_core.contract.device import Device, Provider
from hotshoe_loader import probe
from hotshoe_loader.canary import check_canary
from hotshoe_loader.contract import memory_problem
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.report import Job
from hotshoe_loader.verdict import Outcome, Rejected
from hotshoe_loader.vet import Policy

__all__ = ["Announce", "Steps"]

Announce = Callable[[str, str], None]
"""Told before each step that may end the process: the step's name, and what it does in words."""


class Steps:
    """The job, and what was learned on the way.

    damaged: native files that are not as pip installed them. folders: where libraries were looked for.
    """

    def __init__(self, job: Job, announce: Announce) -> None:
        self.job = job
        self.plugin: PluginCandidate = job.plugin
        self.policy = Policy(job.block, job.allow)
        self.damaged: dict[str, str] = {}
        self.folders: dict[str, None] = {}
        self._announce = announce

    def begin(self, name: str, doing: str) -> None:
        """Announces a step. Raises Rejected if an earlier child died at it."""
        if name in self.job.skip:
            raise self.job.skip[name]
        self._announce(name, doing)

    def try_devices(self, provider: Provider, library: Path | None) -> tuple[list[Device], list[str]]:
        """The devices that pass their test, and why the others do not. Raises Rejected if none does."""
        kept: list[Device] = []
        failed: list[Rejected] = []
        for device in probe.list_devices(provider, library, self.plugin):
            try:
                self._check_memory(device)
                if not self.policy.device(device):  # a blocked one is not computed on
                    doing = f"computing on {device.name}"
                    self.begin(f"device:{library}:{device.name}", doing)
                    probe.guarded(partial(check_canary, provider, device), doing, self.plugin, Outcome.CRASHED)
                kept.append(device)
            except Rejected as rejected:
                failed.append(rejected)
        if not kept:
            raise failed[0]
        return kept, [rejected.reason for rejected in failed]

    @staticmethod
    def _check_memory(device: Device) -> None:
        problem = memory_problem(device)
        if problem is not None:
            raise Rejected(
                Outcome.WRONG_RESULT,
                f"{device.name} reports {problem}",
                f"update the driver of {device.description or device.name}, or block={device.name!r}",
            )
