"""All four stages over every candidate, and a verdict for each. What a registry then ranks and opens."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hotshoe_core.contract.device import Device
from hotshoe_core.eager.reference import reference_device
from hotshoe_loader import cache
from hotshoe_loader.activate import Offer, imported_version, prints_to_log
from hotshoe_loader.builtin import not_installed, reference
from hotshoe_loader.catalog import by_distribution, known
from hotshoe_loader.explain import warning
from hotshoe_loader.find import PluginCandidate, find_plugins
from hotshoe_loader.ggml.judge import (
    driven_verdicts,
    folder_verdicts,
    library_verdicts,
    refuse_libraries,
    refuse_other_ggml,
    undriven_libraries,
    undriven_verdicts,
)
from hotshoe_loader.ggml.names import LibraryCandidate
from hotshoe_loader.names import Names
from hotshoe_loader.options import Options, normalise
from hotshoe_loader.report import Job, ProviderReport, Report
from hotshoe_loader.verdict import Outcome, Rejected, Verdict
from hotshoe_loader.vet import Policy, vet_plugin

__all__ = ["Survey", "take_survey"]

logger = logging.getLogger("hotshoe.loader")


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is, at one moment. ``devices`` are not ranked: that depends on who asks.

    offers: a provider's name, and how to get it into this process. notes: words about the options.
    """

    devices: tuple[Device, ...]
    offers: Mapping[str, Offer]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()


def take_survey(options: Options, refresh: bool = False) -> Survey:
    """Finds, vets and probes every candidate that the options leave. ``refresh``: trust no earlier probe."""
    found = find_plugins()
    judge = _Judge(options)
    jobs = [job for plugin in found.plugins if (job := judge.job(plugin)) is not None]
    state = {**cache.state(found.installed), "timeout": options.timeout} if jobs else None
    store = cache.Cache(cache.folder(), state)
    reports = {id(job.plugin): (job, report) for job, report in probe_all(jobs, options.timeout, store, refresh)}
    for plugin in found.plugins:
        job, report = reports.get(id(plugin), (None, None))
        judge.plugin(plugin, job, report, store)
    if undriven := judge.undriven():
        for job, report in probe_all(undriven, options.timeout, store, refresh):
            judge.driven(job, report, store)
    return judge.survey(found.installed)


def probe_all(jobs: Sequence[Job], limit: float, store: cache.Cache, refresh: bool) -> list[tuple[Job, Report]]:
    """The report on each job: a kept one, or that of a child process, which is kept."""
    kept = {} if refresh else {id(job): report for job in jobs if (report := store.get(job)) is not None}
    fresh = [job for job in jobs if id(job) not in kept]
    for job, report in zip(fresh, _probe(fresh, limit) if fresh else ()):
        kept[id(job)] = report
        if report.tried:
            store.put(job, report)
    return [(job, kept[id(job)]) for job in jobs]


def _probe(jobs: Sequence[Job], limit: float) -> list[Report]:
    from hotshoe_loader import children  # not needed where everything is in the cache

    if children.available():
        try:
            return children.run(jobs, limit)
        except OSError as error:
            logger.warning("no child process can be started, so plugins are tried in this one: %s", error)
    from hotshoe_loader.trial import try_plugin

    with prints_to_log():
        return [try_plugin(job) for job in jobs]


class _Judge:
    """Passes the verdicts, one candidate after the other."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._policy = Policy(options.block, options.allow)
        self._folders = dict.fromkeys(options.paths, "paths= or HOTSHOE_PATH")
        if options.system:
            from hotshoe_loader.ggml.homes import known_homes

            for folder, origin in known_homes():
                self._folders.setdefault(folder, origin)
        self._rejected: dict[int, Rejected] = {}  # by id of the plugin: what vetting refused
        self._names = Names()
        self._offers: dict[str, Offer] = {}
        self._verdicts: list[Verdict] = []
        self._backends: set[str] = set()  # names of native backends that some provider drives
        self._searched: dict[Path, None] = {}  # folders of plugins' libraries
        self._driver: Job | None = None  # of the plugin that drives libraries that no plugin brings
        self._undriven: dict[str, list[LibraryCandidate]] = {}  # such libraries, by their backend's name
        self._distributions: set[str] = set()

    def job(self, plugin: PluginCandidate) -> Job | None:
        """What to probe, if the plugin may be used at all."""
        if plugin.shadowed_by is None:
            self._distributions.add(normalise(plugin.distribution))
        try:
            vet_plugin(plugin, self._policy)
        except Rejected as rejected:
            self._rejected[id(plugin)] = rejected
            return None
        paths = tuple(map(str, self._folders))
        return Job(plugin, self._options.block, self._options.allow, paths, self._options.ggml)

    def plugin(self, plugin: PluginCandidate, job: Job | None, report: Report | None, store: cache.Cache) -> None:
        """Verdicts on a plugin, its providers and libraries. ``job`` and ``report`` are None if vetting refused it."""
        published = by_distribution(normalise(plugin.distribution))
        details: dict[str, Any] = {"plugin": plugin.name, "distribution": plugin.distribution}
        if published is not None:
            details["backend"] = published.name
        if job is None or report is None:
            self._reject(self._rejected[id(plugin)], plugin.name, plugin, 0.0, details)
            return
        self._note(report, details)
        self._searched.update({Path(folder): None for folder in report.folders})
        if report.drives and (self._driver is None or published is not None):
            self._driver = job
        if report.rejected is not None:
            self._reject(_aged(report.rejected, report.age), plugin.name, plugin, report.elapsed, details)
        for provider in report.providers:
            if provider.native is not None:
                self._backends.add(provider.native)
            try:
                self._offer(provider, job, report.age, store, details)
            except Rejected as rejected:
                about = {**details, **_about(provider)}
                self._reject(rejected, provider.name, plugin, provider.elapsed, about)
                self._verdicts += library_verdicts(provider, False)

    def undriven(self) -> list[Job]:
        """What to probe of the libraries that no plugin brings: one job for each backend, as one may crash."""
        folders = [*self._folders, *(folder for folder in self._searched if folder not in self._folders)]
        jobs = []
        for backend, libraries in undriven_libraries(folders, self._backends).items():
            try:
                refuse_libraries(backend, libraries, self._policy)
            except Rejected as rejected:
                self._verdicts += driven_verdicts(None, libraries, rejected)
                continue
            if self._driver is None:
                self._verdicts += undriven_verdicts(libraries, self._policy)
                continue
            self._undriven[backend] = libraries
            jobs.append(replace(self._driver, drives=backend, paths=tuple(map(str, folders)), skip={}))
        return jobs

    def driven(self, job: Job, report: Report, store: cache.Cache) -> None:
        """Verdicts on libraries that no plugin brings, and on the provider that drives them."""
        libraries = self._undriven[job.drives]
        details: dict[str, Any] = {"plugin": job.plugin.name, "distribution": job.plugin.distribution}
        self._note(report, details)
        if report.rejected is not None:
            self._verdicts += driven_verdicts(None, libraries, _aged(report.rejected, report.age))
        for provider in report.providers:
            try:
                self._offer(provider, job, report.age, store, details)
            except Rejected as rejected:
                self._verdicts += driven_verdicts(provider, libraries, rejected)

    def _note(self, report: Report, details: dict[str, Any]) -> None:
        self._policy.met.update(report.met)
        if report.age is not None:
            details["cached"] = round(report.age, 1)
        if report.changes:
            details["changes"] = report.changes

    def _offer(
        self, report: ProviderReport, job: Job, age: float | None, store: cache.Cache, details: dict[str, Any]
    ) -> None:
        """Takes in a provider that can be used, and says so. Raises Rejected for one that cannot."""
        name, plugin = report.name, job.plugin
        details = {**details, **_about(report)}
        if report.family:
            self._names.refuse_taken(name, report.family, plugin)
        if report.rejected is not None:
            raise _aged(report.rejected, age)
        details |= refuse_other_ggml(report, self._options.ggml)
        kept, dropped = self._names.admit(report.devices, plugin, self._policy)
        self._names.take(name, plugin)
        library = None if report.library is None else Path(report.library)
        forget = partial(store.drop, job)
        self._offers[name] = Offer(name, plugin, library, report.files, job.ggml, job.drives, forget)
        reason = f"offers {', '.join(device.name for device in kept)}"
        if dropped := [*report.dropped, *dropped]:
            details["dropped"] = dropped
            reason += f"; not used: {'; '.join(dropped)}"
        version = imported_version(plugin)
        if version is not None and version != plugin.version:
            reason += f"; version {version} stays in this process until it ends"
        details["devices"] = [device.name for device in kept]
        if report.library is not None:
            details["library"] = report.library
            score = next((each.score for each in report.libraries if each.path == report.library), None)
            details |= {"score": score} if score is not None else {}
        verdict = Verdict(name, "plugin", Outcome.AVAILABLE, reason, None, plugin.origin, report.elapsed, details)
        self._verdicts.append(verdict)
        self._verdicts += library_verdicts(report, True)

    def _reject(
        self, rejected: Rejected, name: str, plugin: PluginCandidate, elapsed: float, details: Mapping[str, Any]
    ) -> None:
        details = {**rejected.details, **details}  # a report that lies has no say about whose it is
        self._verdicts.append(
            Verdict(name, "plugin", rejected.outcome, rejected.reason, rejected.hint, plugin.origin, elapsed, details)
        )

    def survey(self, installed: Mapping[str, str]) -> Survey:
        """All of it: what no plugin drives, what is not there, and what always is. Logs every verdict."""
        self._verdicts += folder_verdicts(self._folders, self._options.relative)
        driven = self._backends | {name.partition(":")[0] for name in self._names.devices}
        self._verdicts += not_installed(self._distributions, driven, installed)
        last = reference(self._policy)
        self._verdicts.append(last)
        devices = [*self._names.devices.values()]
        if last.outcome.usable:
            self._offers[last.candidate] = Offer(last.candidate)
            devices.append(reference_device())
        # A published plugin may be blocked without being there; another name that met nothing may be a slip.
        notes = [f"{option}={name!r} met nothing" for option, name in self._policy.unmet if known(name) is None]
        for verdict in self._verdicts:
            trace = "".join(f"\n  {line}" for line in verdict.details.get("traceback", ()))
            logger.debug("%s%s%s", verdict, f" ({verdict.hint})" if verdict.hint else "", trace)
        words = warning(self._verdicts, self._offers)
        if words:
            logger.warning("%s", words)
        return Survey(tuple(devices), MappingProxyType(self._offers), tuple(self._verdicts), tuple(notes))


def _about(report: ProviderReport) -> dict[str, Any]:
    details: dict[str, Any] = {"provider": report.name, "family": report.family} if report.family else {}
    return details if report.native is None else {**details, "backend": report.native}


def _aged(rejected: Rejected, age: float | None) -> Rejected:
    """The rejection, and that it was found earlier, where the cause may be gone by now."""
    if age is None or not rejected.outcome.broken:
        return rejected
    when = f"{age:.0f} s" if age < 120 else f"{age / 60:.0f} minutes"
    reason = f"{rejected.reason} (found {when} ago; load_all(refresh=True) tries again)"
    aged = Rejected(rejected.outcome, reason, rejected.hint)
    aged.details = rejected.details
    return aged
