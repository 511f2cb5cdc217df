"""Vets and probes one plugin from beginning to end. Runs in a child process; what it finds out is a Report."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hotshoe_core.device import Device, NativeLibraries, Provider
from hotshoe_loader import probe
from hotshoe_loader.canary import check_canary, check_memory
from hotshoe_loader.find import LibraryCandidate, find_libraries
from hotshoe_loader.manifest import abi_of_core, find_manifest
from hotshoe_loader.rank import choose_library
from hotshoe_loader.report import Job, LibraryReport, ProviderReport, Report
from hotshoe_loader.traces import Traces
from hotshoe_loader.verdict import Outcome, Rejected
from hotshoe_loader.vet import Policy
from hotshoe_loader.vet_files import (
    damaged_files,
    untrusted,
    vet_abi,
    vet_adoption,
    vet_library,
    vet_manifest,
    vet_provider,
    vet_tags,
)

__all__ = ["Stage", "try_plugin"]

Stage = Callable[[str, str], None]
"""Told before each step that may end the process: the step's name, and what it does in words."""


def try_plugin(job: Job, stage: Stage = lambda step, doing: None) -> Report:
    """The report on one plugin. Raises nothing but KeyboardInterrupt."""
    return _Trial(job, stage).run()


class _Trial:
    def __init__(self, job: Job, stage: Stage) -> None:
        self._plugin = job.plugin
        self._job = job
        self._stage = stage
        self._policy = Policy(job.block, job.allow)
        self._damaged: dict[str, str] = {}
        self._folders: dict[str, None] = {}

    def run(self) -> Report:
        start = time.perf_counter()
        report = Report()
        traces = Traces()
        try:
            for provider in self._providers(report):
                report.providers.append(self._provider(provider))
        except Rejected as rejected:
            report.rejected = rejected
        report.met = sorted(self._policy.met)
        report.folders = list(self._folders)
        report.changes = traces.changes()
        report.elapsed = time.perf_counter() - start
        return report

    def _step(self, name: str, doing: str) -> None:
        """Raises Rejected if an earlier child died at this step."""
        if name in self._job.skip:
            raise self._job.skip[name]
        self._stage(name, doing)

    def _guarded(self, call: Callable[[], None], doing: str) -> None:
        probe.guarded(call, doing, self._plugin, Outcome.CRASHED)

    def _providers(self, report: Report) -> list[Any]:
        plugin = self._plugin
        vet_tags(plugin)
        self._damaged = damaged_files(plugin)
        manifest = find_manifest(plugin)
        vet_manifest(manifest, plugin)
        report.environment = list(manifest.environment) if manifest else []
        self._step("import", f"importing {plugin.module!r}")
        module = probe.import_plugin(plugin)
        adopted = Path(self._job.ggml) if self._job.ggml and probe.adopts(module) else None
        if adopted is not None:
            vet_adoption(adopted, manifest, plugin)
            self._folders[str(adopted)] = None
        self._step("import", "its hook hotshoe_adopt()" if adopted else "its hook hotshoe_providers()")
        return probe.ask_providers(probe.new_manager(), plugin, module, adopted)

    def _provider(self, provider: Any) -> ProviderReport:
        start = time.perf_counter()
        plugin = self._plugin
        report = ProviderReport(plugin.name)
        try:
            probe.guarded(
                lambda: vet_provider(provider, plugin, self._policy), "reading its name", plugin, Outcome.CRASHED
            )
            report.name, report.family = provider.name, provider.family
            self._step(f"provider:{provider.name}", "its native()")
            native = probe.native_libraries(provider, plugin)
            if native is None:
                self._step(f"provider:{provider.name}", "its devices()")
                report.devices, report.dropped = self._devices(provider, None)
            else:
                self._native(provider, native, report)
        except Rejected as rejected:
            report.rejected = rejected
        report.elapsed = time.perf_counter() - start
        return report

    # -- native libraries --

    def _native(self, provider: Provider, native: NativeLibraries, report: ProviderReport) -> None:
        """Chooses the library of one provider, among its own and those in the user's folders, which come first."""
        report.native, report.core = native.name, str(native.core)
        self._policy.refuse(native.name)
        folders = [*map(Path, self._job.paths), *native.directories]
        self._folders.update({str(folder): None for folder in [*folders, native.core.parent]})
        found = find_libraries(native.name, folders)
        if not found:
            raise Rejected(
                Outcome.MISSING_DEPENDENCY,
                f"there is no libggml-{native.name} in {', '.join(map(str, native.directories)) or 'no folder'}",
                f"pip install --force-reinstall {self._plugin.distribution}",
            )
        problem = self._damaged.get(os.path.realpath(native.core))
        if problem is not None:
            raise untrusted(native.core, problem, f"pip install --force-reinstall {self._plugin.distribution}")
        self._step(f"provider:{provider.name}", f"opening {native.core.name}")
        probe.open_core(native, self._plugin)
        scores = [score for each in found if (score := self._score(each, native, report)) is not None]
        while (best := choose_library(scores)) is not None:
            try:
                self._step(f"library:{best.library.path}", f"its devices() through {best.library.name}")
                report.devices, report.dropped = self._devices(provider, best.library.path)
            except Rejected as rejected:  # the next best may do
                scores.remove(best)
                library = next(each for each in report.libraries if each.path == str(best.library.path))
                library.rejected = rejected
            else:
                report.library = str(best.library.path)
                return
        raise _none_usable(report.libraries, self._plugin.distribution)

    def _score(self, library: LibraryCandidate, native: NativeLibraries, report: ProviderReport) -> probe.Score | None:
        start = time.perf_counter()
        entry = LibraryReport(library.name, str(library.path))
        report.libraries.append(entry)
        score = None
        try:
            binary = vet_library(library, self._policy, self._damaged)
            vet_abi(library, native.core, abi_of_core(native.core))
            self._step(f"library:{library.path}", f"opening {library.path.name}")
            score = probe.score_library(library, binary)
            entry.score = score.value
        except Rejected as rejected:
            entry.rejected = rejected
            score = None
        entry.elapsed = time.perf_counter() - start
        return score

    # -- devices --

    def _devices(self, provider: Provider, library: Path | None) -> tuple[list[Device], list[str]]:
        """The devices that pass their test, and why the others do not. Raises Rejected if none does."""
        kept: list[Device] = []
        failed: list[Rejected] = []
        for device in probe.list_devices(provider, library, self._plugin):
            try:
                check_memory(device)
                if not self._policy.device(device):  # a blocked one is not computed on
                    self._step(f"device:{library}:{device.name}", f"computing on {device.name}")
                    self._guarded(partial(check_canary, provider, device), f"computing on {device.name}")
                kept.append(device)
            except Rejected as rejected:
                failed.append(rejected)
        if not kept:
            raise failed[0]
        return kept, [rejected.reason for rejected in failed]


def _none_usable(libraries: list[LibraryReport], distribution: str) -> Rejected:
    """The provider's own rejection when all of its libraries were rejected: by the most telling of their outcomes."""
    rejections = [(each.name, each.rejected) for each in libraries if each.rejected is not None]
    why = "; ".join(f"{name}: {rejected.reason}" for name, rejected in rejections)
    broken = [rejected for _, rejected in rejections if rejected.outcome.broken]
    if broken:
        return Rejected(broken[0].outcome, f"none of its libraries can be used: {why}", broken[0].hint)
    if all(rejected.outcome is Outcome.BLOCKED for _, rejected in rejections):
        return Rejected(Outcome.BLOCKED, f"all of its libraries are blocked: {why}", rejections[0][1].hint)
    return Rejected(
        Outcome.NO_DEVICE,
        f"none of its libraries runs on this machine: {why}",
        f"build one that does: pip install --no-binary {distribution} {distribution}",
    )
