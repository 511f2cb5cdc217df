"""Vets and probes one plugin from beginning to end. Runs in a child process; what it finds out is a Report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hotshoe_core.contract.device import Provider
from hotshoe_loader import probe
from hotshoe_loader.ggml.cores import built_from
from hotshoe_loader.ggml.trial import try_libraries
from hotshoe_loader.ggml.vet import vet_adoption
from hotshoe_loader.manifest import find_manifest
from hotshoe_loader.process_changes import ProcessChanges
from hotshoe_loader.report import Job, ProviderReport, Report
from hotshoe_loader.steps import Announce, Steps
from hotshoe_loader.verdict import Outcome, Rejected
from hotshoe_loader.vet_files import damaged_files, vet_manifest, vet_provider, vet_tags

__all__ = ["try_plugin"]


def try_plugin(job: Job, announce: Announce = lambda step, doing: None) -> Report:
    """The report on one plugin. Raises nothing but KeyboardInterrupt."""
    import hotshoe_core.contract.backend  # noqa: F401 - which its devices are tested with; what NumPy changes is not its doing

    start = time.perf_counter()
    steps, report, process = Steps(job, announce), Report(), ProcessChanges()
    # Guarded as a whole: what we did not think of costs this plugin its verdict, and not its neighbours theirs.
    try:
        providers = probe.guarded(lambda: _providers(steps, report), "vetting it", job.plugin, Outcome.CRASHED)
        for provider in providers:
            report.providers.append(_provider(steps, provider))
    except Rejected as rejected:
        report.rejected = rejected
    finally:
        report.changes = process.put_back()
    report.met = sorted(steps.policy.met)
    report.folders = list(steps.folders)
    report.elapsed = time.perf_counter() - start
    return report


def _providers(steps: Steps, report: Report) -> list[Any]:
    """What the plugin's hook returns, after all checks that need none of its code."""
    plugin, ggml = steps.plugin, steps.job.ggml
    vet_tags(plugin)
    steps.damaged = damaged_files(plugin)
    manifest = find_manifest(plugin)
    vet_manifest(manifest, plugin)
    built = built_from(manifest)
    report.environment = list(manifest.environment) if manifest else []
    steps.begin("import", f"importing {plugin.module!r}")
    module = probe.import_plugin(plugin)
    adopted = Path(ggml) if ggml and probe.adopts(module) else None
    if adopted is not None:
        vet_adoption(adopted, built, plugin)
        steps.folders[str(adopted)] = None
    steps.begin("import", "its hook hotshoe_adopt()" if adopted else "its hook hotshoe_providers()")
    manager = probe.new_manager()
    providers = probe.ask_providers(manager, plugin, module, adopted)
    report.drives = probe.drives(module)
    if not steps.job.drives:
        return providers
    steps.begin("import", "its hook hotshoe_drive()")
    return probe.ask_driver(manager, plugin, module, steps.job.drives)


def _provider(steps: Steps, provider: Any) -> ProviderReport:
    """What one provider is worth: its libraries, if it has any, and its devices."""
    start = time.perf_counter()
    plugin = steps.plugin
    report = ProviderReport(plugin.name)
    try:
        probe.guarded(lambda: _identify(steps, provider, report), "reading its name", plugin, Outcome.CRASHED)
        probe.guarded(lambda: _compute(steps, provider, report), "trying it", plugin, Outcome.CRASHED)
    except Rejected as rejected:
        report.rejected = rejected
    report.elapsed = time.perf_counter() - start
    return report


def _identify(steps: Steps, provider: Any, report: ProviderReport) -> None:
    vet_provider(provider, steps.plugin, steps.policy)
    report.name, report.family = provider.name, provider.family


def _compute(steps: Steps, provider: Provider, report: ProviderReport) -> None:
    steps.begin(f"provider:{provider.name}", "its native()")
    native = probe.native_libraries(provider, steps.plugin)
    if native is None:
        steps.begin(f"provider:{provider.name}", "its devices()")
        report.devices, report.dropped = steps.try_devices(provider, None)
    else:
        report.kind, described = native
        try_libraries(steps, provider, described, report)
