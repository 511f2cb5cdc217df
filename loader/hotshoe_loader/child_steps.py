"""The steps of a probe, in the child process: vet a plugin's files, import it, list and test its devices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hotshoe_core.contract.device import Provider
from hotshoe_loader import plugin_calls
from hotshoe_loader.child_state import Announce, ProbeState
from hotshoe_loader.ggml.library_abi import declared_ggml
from hotshoe_loader.ggml.probe_libraries import probe_libraries
from hotshoe_loader.ggml.vet_libraries import vet_adoption
from hotshoe_loader.manifest import find_manifest
from hotshoe_loader.process_changes import ProcessChanges
from hotshoe_loader.report import Job, ProviderReport, Report
from hotshoe_loader.used import Used
from hotshoe_loader.verdict import Outcome, Rejected
from hotshoe_loader.vet_files import damaged_files, vet_manifest, vet_provider, vet_tags

__all__ = ["probe_plugin"]


def probe_plugin(job: Job, announce: Announce = lambda step, doing: None) -> Report:
    """Vet and test one plugin from beginning to end. Raises only KeyboardInterrupt."""
    import hotshoe_core.contract.backend  # noqa: F401 - NumPy changes the process too; import it before the snapshot

    start = time.perf_counter()
    used, process = Used(), ProcessChanges()
    state, report = ProbeState(job, announce), Report()
    # Guarded as a whole: an exception that no step expects rejects this plugin only.
    try:
        providers = plugin_calls.guarded(lambda: _providers(state, report), "vetting it", job.plugin, Outcome.CRASHED)
        for provider in providers:
            report.providers.append(_probe_provider(state, provider))
    except Rejected as rejected:
        report.rejected = rejected
    finally:
        report.changes = process.put_back()
        report.modules, report.missing, report.mapped = used.finish()
    report.matched = sorted(state.policy.matched)
    report.folders = list(state.folders)
    report.elapsed = time.perf_counter() - start
    return report


def _providers(state: ProbeState, report: Report) -> list[Any]:
    """Run the checks that need no code of the plugin, then import it. Return the providers of its hook."""
    plugin, ggml = state.plugin, state.job.ggml
    vet_tags(plugin)
    state.damaged = damaged_files(plugin)
    manifest = find_manifest(plugin)
    vet_manifest(manifest, plugin)
    declared = declared_ggml(manifest)
    report.environment = list(manifest.environment) if manifest else []
    state.begin("import", f"importing {plugin.module!r}")
    module = plugin_calls.import_plugin(plugin)
    adopted = Path(ggml) if ggml and plugin_calls.can_adopt(module) else None
    if adopted is not None:
        vet_adoption(adopted, declared, plugin)
        state.folders[str(adopted)] = None
    state.begin("import", "calling its hook hotshoe_adopt()" if adopted else "calling its hook hotshoe_providers()")
    manager = plugin_calls.new_manager()
    providers = plugin_calls.ask_providers(manager, plugin, module, adopted)
    report.can_drive = plugin_calls.can_drive(module)
    if not state.job.driven_backend:
        return providers
    state.begin("import", "calling its hook hotshoe_drive()")
    return plugin_calls.ask_driver(manager, plugin, module, state.job.driven_backend)


def _probe_provider(state: ProbeState, provider: Any) -> ProviderReport:
    """The report on one provider: its libraries, if it has any, and its devices."""
    start = time.perf_counter()
    plugin = state.plugin
    report = ProviderReport(plugin.name)
    try:
        plugin_calls.guarded(lambda: _identify(state, provider, report), "reading its name", plugin, Outcome.CRASHED)
        plugin_calls.guarded(lambda: _test(state, provider, report), "testing it", plugin, Outcome.CRASHED)
    except Rejected as rejected:
        report.rejected = rejected
    report.elapsed = time.perf_counter() - start
    return report


def _identify(state: ProbeState, provider: Any, report: ProviderReport) -> None:
    vet_provider(provider, state.plugin, state.policy)
    report.name, report.family = provider.name, provider.family


def _test(state: ProbeState, provider: Provider, report: ProviderReport) -> None:
    state.begin(f"provider:{provider.name}", "calling its native()")
    native = plugin_calls.native_libraries(provider, state.plugin)
    if native is None:
        state.begin(f"provider:{provider.name}", "calling its devices()")
        report.devices, report.dropped = state.test_devices(provider, None)
    else:
        report.kind, description = native
        probe_libraries(state, provider, description, report)
