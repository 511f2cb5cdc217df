"""Stage 4, admit: which probed providers this process can use: unique names, nothing blocked, one ggml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hotshoe_loader.activate import UsableProvider, imported_version
from hotshoe_loader.cache import Cache
from hotshoe_loader.catalog import RPC
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.ggml.file_names import LibraryCandidate
from hotshoe_loader.ggml.verdicts import library_verdicts, refuse_other_ggml
from hotshoe_loader.ggml.without_plugin import unusable_verdicts
from hotshoe_loader.names import Names
from hotshoe_loader.policy import Policy
from hotshoe_loader.probe import Probed
from hotshoe_loader.report import ProviderReport
from hotshoe_loader.servers import silent_servers
from hotshoe_loader.verdict import Outcome, Rejected, Verdict
from hotshoe_loader.vet import facts_about

__all__ = ["admit_libraries", "admit_plugins"]


def admit_plugins(
    probed: Sequence[Probed], names: Names, policy: Policy, store: Cache
) -> tuple[list[UsableProvider], dict[EntryPoint, list[Verdict]]]:
    """Return the usable providers, and the verdicts on each plugin, its providers and its libraries."""
    usable: list[UsableProvider] = []
    verdicts: dict[EntryPoint, list[Verdict]] = {}
    for result in probed:
        plugin, report = result.job.plugin, result.report
        facts = {**facts_about(plugin), **_probe_facts(result)}
        found = verdicts[plugin] = []
        policy.matched.update(report.matched)
        if report.rejected is not None:
            rejected = report.rejected.with_age(report.age)
            found.append(rejected.verdict(plugin.name, "plugin", plugin.origin, report.elapsed, facts))
        for provider in report.providers:
            try:
                admitted, verdict = _admit(provider, result, names, policy, store, facts)
            except Rejected as rejected:
                about = {**facts, **_provider_facts(provider)}
                found.append(rejected.verdict(provider.name, "plugin", plugin.origin, provider.elapsed, about))
                found += library_verdicts(provider, used=False)
            else:
                usable.append(admitted)
                found += [verdict, *library_verdicts(provider, used=True)]
    return usable, verdicts


def admit_libraries(
    probed: Sequence[Probed],
    libraries: Mapping[str, Sequence[LibraryCandidate]],
    names: Names,
    policy: Policy,
    store: Cache,
) -> tuple[list[UsableProvider], list[Verdict]]:
    """Return the usable providers of libraries without a plugin, and the verdicts on these libraries.

    libraries: by their backend, which is the ``driven_backend`` of a job.
    """
    usable: list[UsableProvider] = []
    verdicts: list[Verdict] = []
    for result in probed:
        plugin, report, tested = result.job.plugin, result.report, libraries[result.job.driven_backend]
        facts = {"plugin": plugin.name, "distribution": plugin.distribution, **_probe_facts(result)}
        policy.matched.update(report.matched)
        if report.rejected is not None:
            verdicts += unusable_verdicts(None, tested, report.rejected.with_age(report.age))
        for provider in report.providers:
            try:
                admitted, verdict = _admit(provider, result, names, policy, store, facts)
            except Rejected as rejected:
                verdicts += unusable_verdicts(provider, tested, rejected)
            else:
                usable.append(admitted)
                verdicts += [verdict, *library_verdicts(provider, used=True)]
    return usable, verdicts


def _admit(
    report: ProviderReport, probed: Probed, names: Names, policy: Policy, store: Cache, facts: Mapping[str, Any]
) -> tuple[UsableProvider, Verdict]:
    """Take a provider's names, and return it with its verdict. Raise Rejected if it cannot be used."""
    name, job = report.name, probed.job
    plugin = job.plugin
    if report.family:
        names.refuse_taken(name, report.family, plugin)
    if report.rejected is not None:
        raise report.rejected.with_age(probed.report.age)
    details = {**facts, **_provider_facts(report), **refuse_other_ggml(report, job.ggml)}
    devices, dropped = names.take_devices(report.devices, plugin, policy)
    names.take_provider(name, plugin)
    reason = f"offers {', '.join(device.name for device in devices)}"
    failed = [*report.dropped, *silent_servers(devices)] if name == RPC.provider else report.dropped
    if dropped := [*(rejected.reason for rejected in failed), *dropped]:
        details["dropped"] = dropped
        reason += f"; not used: {'; '.join(dropped)}"
    hint = next((rejected.hint for rejected in failed if rejected.hint), None)
    version = imported_version(plugin)
    if version is not None and version != plugin.version:
        reason += f"; version {version} stays in this process until it ends"
    details["devices"] = [device.name for device in devices]
    library = None
    if report.library is not None:
        library = Path(report.library)
        details["library"] = report.library
        score = next((tested.score for tested in report.libraries if tested.path == report.library), None)
        details |= {"score": score} if score is not None else {}
    forget = partial(store.drop, job)
    usable = UsableProvider(name, tuple(devices), plugin, library, report.files, job.ggml, job.driven_backend, forget)
    return usable, Verdict(name, "plugin", Outcome.AVAILABLE, reason, hint, plugin.origin, report.elapsed, details)


def _probe_facts(probed: Probed) -> dict[str, Any]:
    facts: dict[str, Any] = {} if probed.report.age is None else {"cached": round(probed.report.age, 1)}
    return {**facts, "changes": probed.report.changes} if probed.report.changes else facts


def _provider_facts(report: ProviderReport) -> dict[str, Any]:
    facts: dict[str, Any] = {"provider": report.name, "family": report.family} if report.family else {}
    return facts if report.native is None else {**facts, "backend": report.native}
