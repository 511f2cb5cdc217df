"""Runs the stages over every candidate and joins what they return: usable providers, and a verdict for each candidate.

Each stage returns what passed and the verdicts on the rest: find → vet → probe → admit, then the same for libraries
without a plugin. Ranking and opening follow in the registry.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from hotshoe_core.contract.device import Device
from hotshoe_core.eager.reference import reference_device
from hotshoe_loader.activate import UsableProvider
from hotshoe_loader.admit import admit_libraries, admit_plugins
from hotshoe_loader.cache import Cache, machine_state, reports_folder
from hotshoe_loader.catalog import CPU, by_distribution
from hotshoe_loader.find import EntryPoint, Found, find_plugins
from hotshoe_loader.ggml.verdicts import folder_verdicts
from hotshoe_loader.ggml.without_plugin import find_without_plugin, jobs_without_plugin, vet_without_plugin
from hotshoe_loader.misspelt import unknown_names, unknown_variables
from hotshoe_loader.names import Names
from hotshoe_loader.options import Options, normalise
from hotshoe_loader.other_verdicts import not_installed, reference
from hotshoe_loader.policy import Policy
from hotshoe_loader.probe import Probed, kept_reports, probe_all
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.report import Job, JobKey, Report
from hotshoe_loader.texts import only_reference, warnings
from hotshoe_loader.verdict import Verdict
from hotshoe_loader.vet import vet_plugins
from hotshoe_loader.wanted import backends_in, named_plugins, plugins_for

__all__ = ["NOTHING", "Survey", "take_survey"]

logger = logging.getLogger("hotshoe.loader")


@dataclass(frozen=True, slots=True)
class Survey:
    """A survey is the result of one run of the stages: the usable providers, and the verdict on every candidate."""

    providers: Mapping[str, UsableProvider]
    """The usable providers, by name."""
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    """Remarks about the options, such as a blocked name that matched nothing."""
    complete: bool = True
    """Whether every plugin was tested, not only those that the caller asked for."""
    reports: Mapping[JobKey, Report] = field(default_factory=dict)
    """The reports on which it is based."""

    def without(self, distribution: str) -> Survey:
        """This survey without its reports on the plugins of one distribution: the next survey tests them again."""
        kept = {key: report for key, report in self.reports.items() if normalise(key[0].distribution) != distribution}
        return replace(self, reports=kept)

    def gave_up_on(self, names: Sequence[str]) -> bool:
        """Whether the test of a plugin or library that ``names`` mean was ended because it took too long."""
        backends, named = backends_in(names), named_plugins(names, [plugin for plugin, _, _ in self.reports]) or ()
        return any(
            report.timed_out and (backend in backends if backend else plugin in named)
            for (plugin, backend, _), report in self.reports.items()
        )

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of all usable providers, not ranked."""
        return tuple(device for provider in self.providers.values() for device in provider.devices)


NOTHING = Survey({}, (), complete=False)


class _Shared(NamedTuple):
    """What the parts of a survey share."""

    options: Options
    refresh: bool
    """Ignore the reports of earlier starts."""
    earlier: Survey
    """A survey whose reports are used again."""
    backends: Collection[str] | None
    """The backends whose libraries without a plugin are tested; None for all."""
    folders: Mapping[Path, str]
    """The user's folders of libraries, each with the option or software that named it."""
    patient_for: Collection[EntryPoint]
    """The plugins whose devices the caller named: their tests may take longer."""
    policy: Policy
    names: Names
    store: Cache


def take_survey(
    options: Options,
    refresh: bool = False,
    names: Sequence[str] = (),
    earlier: Survey = NOTHING,
) -> Survey:
    """Find, vet, probe and admit every candidate, or only what ``names`` ask for.

    refresh: ignore the reports of earlier starts. names: names of devices; if they say which plugins offer these, the
    others are not tested, unless ``earlier`` has reports on them. earlier: its reports are used again, and its
    warnings are not repeated.
    """
    found, policy = find_plugins(), Policy(options.block, options.allow)
    allowed, refused = vet_plugins(found.plugins, policy)
    wanted = plugins_for(names, allowed) if names else None
    taken = Names(allowed)
    if wanted is not None:
        tested = {plugin for plugin, _, _ in earlier.reports}
        allowed = [plugin for plugin in allowed if plugin in wanted or plugin in tested]
    state = {**machine_state(found.installed), "timeout": options.timeout} if allowed else None
    store = Cache(reports_folder(), state, found.installed)
    backends = None if wanted is None else backends_in(names)
    patient_for = (named_plugins(names, allowed) if names else None) or ()
    shared = _Shared(options, refresh, earlier, backends, _library_folders(options), patient_for, policy, taken, store)
    probed, usable, admitted = _survey_plugins(shared, allowed)
    verdicts = [
        verdict
        for plugin in dict.fromkeys(found.plugins)
        for verdict in (*refused.get(plugin, ()), *admitted.get(plugin, ()))
    ]
    more_probed, more_usable, more_verdicts = _survey_libraries(shared, probed)
    usable += more_usable
    verdicts += more_verdicts
    more_usable, more_verdicts = _survey_rest(shared, found, usable, _backends(_of_this_ggml(options, probed)))
    usable += more_usable
    verdicts += more_verdicts
    providers = {provider.name: provider for provider in usable}
    reports = {result.job.key: result.report for result in (*probed, *more_probed)}
    unknown = list(unknown_names(policy.unmatched, verdicts)) if policy.unmatched else []
    if unknown and wanted is not None:  # it may be a name of something that was not tested
        return take_survey(options, refresh, (), replace(earlier, reports=reports))
    prefixes = [name for report in reports.values() for name in report.environment]
    # A plugin that was not tested may read a variable.
    notes = (*unknown, *unknown_variables(prefixes)) if wanted is None else ()
    survey = Survey(MappingProxyType(providers), tuple(verdicts), notes, wanted is None, reports)
    _log(survey, earlier)
    return survey


def _survey_plugins(
    shared: _Shared, plugins: Sequence[EntryPoint]
) -> tuple[list[Probed], list[UsableProvider], dict[EntryPoint, list[Verdict]]]:
    """Probe the plugins that passed vet, and admit their providers. Return their reports too."""
    options, paths = shared.options, tuple(map(str, shared.folders))
    jobs = [
        Job(plugin, options.block, options.allow, paths, options.ggml, patient=plugin in shared.patient_for)
        for plugin in plugins
    ]
    probed = probe_all(jobs, options, shared.store, shared.refresh, shared.earlier.reports)
    usable, verdicts = admit_plugins(probed, shared.names, shared.policy, shared.store)
    return probed, usable, verdicts


def _survey_libraries(
    shared: _Shared, probed: Sequence[Probed]
) -> tuple[list[Probed], list[UsableProvider], list[Verdict]]:
    """Find libraries without a plugin in the folders of the user and of the plugins; vet, probe and admit them."""
    probed = _of_this_ggml(shared.options, probed)
    plugin_folders = [Path(name) for result in probed for name in result.report.folders]
    searched = list(dict.fromkeys([*shared.folders, *plugin_folders]))
    driver = _driver(probed)
    found = find_without_plugin(searched, _backends(probed))
    if shared.backends is not None:
        found = {backend: libraries for backend, libraries in found.items() if backend in shared.backends}
    patient_for = shared.backends or ()
    jobs = jobs_without_plugin(driver, found, searched, patient_for) if driver is not None else []
    known = kept_reports(jobs, shared.store, shared.refresh, shared.earlier.reports)
    reported = {job.driven_backend for job in jobs if job.key in known}
    libraries, verdicts = vet_without_plugin(found, shared.policy, driver is not None, reported)
    jobs = [job for job in jobs if job.driven_backend in libraries]
    if not jobs:
        return [], [], verdicts
    tested = probe_all(jobs, shared.options, shared.store, shared.refresh, known)
    usable, more = admit_libraries(tested, libraries, shared.names, shared.policy, shared.store)
    return tested, usable, [*verdicts, *more]


def _survey_rest(
    shared: _Shared, found: Found, usable: Sequence[UsableProvider], backends: Collection[str]
) -> tuple[list[UsableProvider], list[Verdict]]:
    """Judge what needs no probe: the user's folders, plugins that are not installed, and the reference backend.

    usable: the providers found so far. backends: the backends that plugins drive.
    """
    verdicts = [*folder_verdicts(shared.folders, shared.options.relative)]
    distributions = {normalise(plugin.distribution) for plugin in found.plugins if plugin.shadowed_by is None}
    driven = {*backends, *(device.name.partition(":")[0] for provider in usable for device in provider.devices)}
    verdicts += not_installed(distributions, driven, found.installed)
    built_in = reference(shared.policy)
    verdicts.append(built_in)
    if not built_in.outcome.usable:
        return [], verdicts
    return [UsableProvider(built_in.candidate, (reference_device(),))], verdicts


def _of_this_ggml(options: Options, probed: Sequence[Probed]) -> Sequence[Probed]:
    """The probed plugins whose libraries join the ggml that this process uses: an adopted set has its own."""
    if not options.ggml:
        return probed
    return [result for result in probed if options.ggml in result.report.folders]


def _backends(probed: Sequence[Probed]) -> set[str]:
    """The backends whose libraries the probed plugins drive, by the name in the libraries' file names.

    "cpu" is one of them if its plugin is broken, too: no other plugin can drive it, and the verdict on the plugin says
    what is wrong.
    """
    providers = [provider for result in probed for provider in result.report.providers]
    backends = {provider.native for provider in providers if provider.native is not None}
    if any(normalise(result.job.plugin.distribution) == CPU.distribution for result in probed):
        backends.add(CPU.name)
    return backends


def _library_folders(options: Options) -> dict[Path, str]:
    """The user's folders of libraries, each with the option or software that named it."""
    folders = dict.fromkeys(options.paths, "paths= or HOTSHOE_PATH")
    if options.system:
        from hotshoe_loader.ggml.known_folders import known_folders

        for folder, origin in known_folders():
            folders.setdefault(folder, origin)
    return folders


def _driver(probed: Sequence[Probed]) -> Job | None:
    """The job of the plugin that drives libraries without a plugin: the last of this project's, else the first."""
    able = [result.job for result in probed if result.report.can_drive]
    ours = [job for job in able if by_distribution(normalise(job.plugin.distribution)) is not None]
    return next(iter([*reversed(ours), *able]), None)


def _log(survey: Survey, earlier: Survey) -> None:
    logged = set(earlier.verdicts)
    fresh = [verdict for verdict in survey.verdicts if verdict not in logged]
    for verdict in fresh:
        trace = "".join(f"\n  {line}" for line in verdict.details.get("traceback", ()))
        logger.debug("%s%s%s", verdict, f" ({verdict.hint})" if verdict.hint else "", trace)
    lines = [*warnings(fresh, survey.providers), *(note for note in survey.notes if note not in earlier.notes)]
    if survey.complete and set(survey.providers) == {REFERENCE}:
        lines.append(only_reference(survey.verdicts))
    if lines:
        logger.warning("%s", "\n".join(lines))
