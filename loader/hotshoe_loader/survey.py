"""All four stages over every candidate, and a verdict for each. What a registry then ranks and opens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hotshoe_core.device import Device
from hotshoe_core.mapped_ggml import foreign_bases, is_mapped
from hotshoe_core.reference import DEVICE
from hotshoe_loader import cache
from hotshoe_loader.activate import Offer, live_version, quiet
from hotshoe_loader.catalog import CATALOG, Known, by_distribution, known
from hotshoe_loader.find import GROUP, LibraryCandidate, PluginCandidate, find_plugins, list_libraries
from hotshoe_loader.options import Options, normalise
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.report import Job, LibraryReport, ProviderReport, Report
from hotshoe_loader.verdict import Outcome, Rejected, Verdict
from hotshoe_loader.vet import Policy, vet_plugin

__all__ = ["Survey", "take_survey"]

logger = logging.getLogger("hotshoe.loader")


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is. ``devices`` are not ranked: that depends on who asks.

    offers: a provider's name, and how to get it into this process. notes: words about the options. opened, failed,
    unloaded: what became of providers since: one was opened; it worked in its probe and could not be imported here;
    the user has unloaded it.
    """

    devices: tuple[Device, ...]
    offers: Mapping[str, Offer]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    opened: set[str] = field(default_factory=set)
    failed: dict[str, Rejected] = field(default_factory=dict)
    unloaded: set[str] = field(default_factory=set)


def take_survey(options: Options, refresh: bool = False) -> Survey:
    """Finds, vets and probes every candidate that the options leave. ``refresh``: trust no earlier probe."""
    found = find_plugins()
    surveyor = _Surveyor(options, found.installed)
    jobs = [job for plugin in found.plugins if (job := surveyor.job(plugin)) is not None]
    state = {**cache.state(found.installed), "timeout": options.timeout} if jobs else None
    store = cache.Cache(cache.folder(), state)
    reports = probe_all(jobs, options.timeout, store, refresh)
    surveyor.judge(found.plugins, {id(job.plugin): (report, partial(store.drop, job)) for job, report in reports})
    surveyor.strays()
    surveyor.not_installed()
    surveyor.reference()
    return surveyor.result()


def probe_all(jobs: Sequence[Job], limit: float, store: cache.Cache, refresh: bool) -> list[tuple[Job, Report]]:
    """The report on each job: a kept one, or that of a child process, which is kept."""
    kept = {} if refresh else {id(job): report for job in jobs if (report := store.get(job)) is not None}
    fresh = [job for job in jobs if id(job) not in kept]
    for job, report in zip(fresh, _probe(fresh, limit) if fresh else ()):
        kept[id(job)] = report
        store.put(job, report)
    return [(job, kept[id(job)]) for job in jobs]


def _probe(jobs: Sequence[Job], limit: float) -> list[Report]:
    from hotshoe_loader import children  # not needed where everything is in the cache

    if children.available():
        try:
            return children.run(jobs, limit)
        except OSError as error:
            logger.warning("no child process can be started, so plugins are tried in this one: %s", error)
    from hotshoe_loader.traces import Traces
    from hotshoe_loader.trial import try_plugin

    traces = Traces()
    try:
        with quiet():
            return [try_plugin(job) for job in jobs]
    finally:
        traces.undo()


class _Surveyor:
    def __init__(self, options: Options, installed: Mapping[str, str]) -> None:
        self._options = options
        self._installed = installed
        self._policy = Policy(options.block, options.allow)
        self._folders = dict.fromkeys(options.paths, "paths= or HOTSHOE_PATH")
        if options.system:
            from hotshoe_loader.homes import known_homes

            for folder, origin in known_homes():
                self._folders.setdefault(folder, origin)
        self._rejected: dict[int, Rejected] = {}  # by id of the plugin: what vetting refused
        self._devices: dict[str, Device] = {}
        self._offers: dict[str, Offer] = {}
        self._owners: dict[str, PluginCandidate] = {}
        self._verdicts: list[Verdict] = []
        self._backends: set[str] = set()  # names of native backends that some provider drives
        self._distributions: set[str] = set()

    def result(self) -> Survey:
        # A published plugin may be blocked without being there; another name that met nothing may be a slip.
        notes = [f"{option}={name!r} met nothing" for option, name in self._policy.unmet if known(name) is None]
        self._tell()
        return Survey(tuple(self._devices.values()), self._offers, tuple(self._verdicts), tuple(notes))

    def _tell(self) -> None:
        """Logs every verdict, and one warning about what was installed to be used and is not."""
        for verdict in self._verdicts:
            logger.debug("%s%s", verdict, f" ({verdict.hint})" if verdict.hint else "")
        # An absent device or a block is nobody's surprise; a broken plugin is.
        broken = [each for each in self._verdicts if each.outcome.broken and each.kind == "plugin"]
        words = [f"{verdict}{f' ({verdict.hint})' if verdict.hint else ''}" for verdict in broken]
        if set(self._offers) == {REFERENCE}:
            words.append(
                "no plugin offers a device, so models run on the reference backend, which is NumPy and slow; "
                f"{' or '.join(_first_steps(self._verdicts)) or 'install a plugin'}, or see load_all().explain()"
            )
        if words:
            logger.warning("%s", "\n".join(words))

    # -- plugins and their providers --

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

    def judge(
        self, plugins: Sequence[PluginCandidate], reports: Mapping[int, tuple[Report, Callable[[], None]]]
    ) -> None:
        """A verdict on every plugin, its providers and libraries, in the order they were found."""
        for plugin in plugins:
            published = by_distribution(normalise(plugin.distribution))
            details: dict[str, Any] = {"plugin": plugin.name, "distribution": plugin.distribution}
            if published is not None:
                details["backend"] = published.name
            if id(plugin) in self._rejected:
                self._reject(self._rejected[id(plugin)], plugin.name, plugin, 0.0, details)
                continue
            report, forget = reports[id(plugin)]
            self._policy.met.update(report.met)
            if report.age is not None:
                details["cached"] = round(report.age, 1)
            if report.changes:
                details["changes"] = report.changes
            if report.rejected is not None:
                self._reject(_aged(report.rejected, report.age), plugin.name, plugin, report.elapsed, details)
            for provider in report.providers:
                self._provider(provider, plugin, report, forget, dict(details))

    def _provider(
        self,
        report: ProviderReport,
        plugin: PluginCandidate,
        whole: Report,
        forget: Callable[[], None],
        details: dict[str, Any],
    ) -> None:
        name = report.name
        if report.family:
            details |= {"provider": name, "family": report.family}
        if report.native is not None:
            details["backend"] = report.native
            self._backends.add(report.native)
        try:
            if report.family:
                self._refuse_taken(name, plugin)
            if report.rejected is not None:
                raise _aged(report.rejected, whole.age)
            self._refuse_other_core(report)
            self._refuse_foreign(report, details)
            kept, dropped = self._admit(report.devices)
        except Rejected as rejected:
            self._reject(rejected, name, plugin, report.elapsed, details)
            self._libraries(report, False)
            return
        self._offers[name] = Offer(
            name, plugin, None if report.library is None else Path(report.library), self._options.ggml, forget
        )
        self._owners[name] = plugin
        reason = f"offers {', '.join(device.name for device in kept)}"
        if dropped := [*report.dropped, *dropped]:
            details["dropped"] = dropped
            reason += f"; not used: {'; '.join(dropped)}"
        version = live_version(plugin)
        if version is not None and version != plugin.version:
            reason += f"; version {version} stays in this process until it ends"
        details["devices"] = [device.name for device in kept]
        if report.library is not None:
            details["library"] = report.library
            score = next((each.score for each in report.libraries if each.path == report.library), None)
            details |= {"score": score} if score is not None else {}
        verdict = Verdict(name, "plugin", Outcome.AVAILABLE, reason, None, plugin.origin, report.elapsed, details)
        self._verdicts.append(verdict)
        self._libraries(report, True)

    def _refuse_taken(self, name: str, plugin: PluginCandidate) -> None:
        if name == REFERENCE:
            raise Rejected(
                Outcome.SHADOWED,
                f"the name {REFERENCE!r} is that of hotshoe's own last resort",
                f"report it to the authors of {plugin.distribution}: the provider needs another name",
            )
        owner = self._owners.get(name)
        if owner is not None:
            raise Rejected(
                Outcome.SHADOWED,
                f"a provider {name!r} comes from {owner.origin} already (entry point {owner.name!r})",
                f"uninstall one of the two, or block={owner.distribution!r} to use this one",
            )

    def _refuse_other_core(self, report: ProviderReport) -> None:
        """One process, one ggml: where a foreign one is adopted, libraries of another do not join it."""
        adopted = self._options.ggml
        if adopted and report.core and not Path(report.core).is_relative_to(adopted):
            raise Rejected(
                Outcome.ABI_MISMATCH,
                f"its libraries belong to {report.core}; this process has adopted the ggml in {adopted}",
                "leave ggml= out to use this plugin",
            )

    def _refuse_foreign(self, report: ProviderReport, details: dict[str, Any]) -> None:
        """Refuses libraries that would bind to another ``libggml-base`` than theirs, already in this process."""
        foreign = foreign_bases(Path(report.core)) if report.core else []
        if not foreign:
            return
        if is_mapped(Path(report.core)):  # theirs was first, and they bind to it
            details["foreign"] = foreign
            return
        first = (
            "call hotshoe.load_all().open() before importing the other package (llama-cpp-python, whisper bindings, …)"
        )
        if self._options.ggml:
            first = "call load_all(ggml=...).open() before any other ggml is opened"
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"another ggml is in this process already: {', '.join(foreign)}; its libggml-base has the name of "
            f"{report.core}, so libraries made for that would call into it",
            f"{first}, or use the two in separate processes",
            foreign=foreign,
        )

    def _admit(self, devices: Sequence[Device]) -> tuple[list[Device], list[str]]:
        """Takes devices in whose names are free and not blocked; returns them, and why the others are not."""
        kept: list[Device] = []
        blocked: list[str] = []
        taken: list[str] = []
        for device in devices:
            other = self._devices.get(device.name)
            if self._policy.device(device):
                blocked.append(f"{device.name} is blocked")
            elif device.name == REFERENCE or other is not None:
                taken.append(f"the name {device.name!r} is taken by {other.provider if other else REFERENCE!r}")
            else:
                self._devices[device.name] = device
                kept.append(device)
        if not kept:
            outcome = Outcome.SHADOWED if taken else Outcome.BLOCKED
            hint = "block= the other one to use this one" if taken else "take it out of block= or HOTSHOE_BLOCK"
            raise Rejected(outcome, "none of its devices is used: " + "; ".join([*taken, *blocked]), hint)
        return kept, [*taken, *blocked]

    # -- native libraries --

    def _libraries(self, report: ProviderReport, used: bool) -> None:
        """Verdicts on the libraries of one provider; where it is not used, on those that are to blame."""
        best = next((each for each in report.libraries if each.path == report.library), None)
        for each in report.libraries:
            if each.rejected is not None or (used and best is not None):
                self._verdicts.append(_library_verdict(each, best or each, report.name))

    def strays(self) -> None:
        """Judges the user's folders themselves, and libraries in them that no installed plugin drives."""
        for entry in self._options.relative:
            self._verdicts.append(
                Verdict(
                    entry,
                    "library",
                    Outcome.UNTRUSTED,
                    "HOTSHOE_PATH names it without a root, so it would mean another folder in each directory",
                    "write it as an absolute path",
                    origin="HOTSHOE_PATH",
                )
            )
        for folder, origin in self._folders.items():
            if not folder.is_dir():
                reason = f"{origin} names it, and there is no such folder"
                self._verdicts.append(
                    Verdict(str(folder), "library", Outcome.NOT_INSTALLED, reason, origin=str(folder))
                )
            for library in list_libraries(folder):
                stem = f"{library.backend}-{library.variant}"
                if not any(stem.startswith(f"{backend}-") for backend in self._backends):
                    self._stray(library)

    def _stray(self, library: LibraryCandidate) -> None:
        from hotshoe_loader.vet_files import vet_library

        start = time.perf_counter()
        published = known(library.backend)
        try:
            self._policy.admit(library.backend, library.name, library.path.name, str(library.path))
            vet_library(library, self._policy, {})
            raise Rejected(
                Outcome.NOT_INSTALLED,
                f"no usable plugin drives ggml's {library.backend!r} backend",
                published.install if published else f"install a plugin whose libraries are named {library.backend!r}",
            )
        except Rejected as rejected:
            elapsed = time.perf_counter() - start
            self._reject(rejected, library.name, library, elapsed, {"backend": library.backend})

    # -- what is not there, and what always is --

    def not_installed(self) -> None:
        """A verdict for each published plugin made for this platform, unless it or another one drives its backend."""
        driven = self._backends | {name.partition(":")[0] for name in self._devices}
        for entry in CATALOG:
            if entry.relevant and entry.distribution not in self._distributions and entry.name not in driven:
                self._verdicts.append(_absent(entry, self._installed.get(entry.distribution)))

    def reference(self) -> None:
        verdict = Verdict(
            REFERENCE,
            "plugin",
            Outcome.AVAILABLE,
            "NumPy, slow and right: the last resort",
            origin="hotshoe",
            details={"provider": REFERENCE, "family": REFERENCE, "devices": [REFERENCE]},
        )
        # Its type is CPU, but block="cpu" means CPU backends, not the last resort.
        if self._policy.hit(REFERENCE):
            reason = "'reference' is blocked by block= or HOTSHOE_BLOCK"
            self._verdicts.append(replace(verdict, outcome=Outcome.BLOCKED, reason=reason))
            return
        self._offers[REFERENCE] = Offer(REFERENCE)
        self._devices[DEVICE.name] = DEVICE
        self._verdicts.append(verdict)

    def _reject(
        self,
        rejected: Rejected,
        name: str,
        candidate: PluginCandidate | LibraryCandidate,
        elapsed: float,
        details: Mapping[str, Any],
    ) -> None:
        plugin = isinstance(candidate, PluginCandidate)
        self._verdicts.append(
            Verdict(
                name,
                "plugin" if plugin else "library",
                rejected.outcome,
                rejected.reason,
                rejected.hint,
                candidate.origin if isinstance(candidate, PluginCandidate) else str(candidate.path),
                elapsed,
                {**details, **rejected.details},
            )
        )


def _aged(rejected: Rejected, age: float | None) -> Rejected:
    """The rejection, and that it was found earlier, where the cause may be gone by now."""
    if age is None or not rejected.outcome.broken:
        return rejected
    when = f"{age:.0f} s" if age < 120 else f"{age / 60:.0f} minutes"
    reason = f"{rejected.reason} (found {when} ago; load_all(refresh=True) tries again)"
    return Rejected(rejected.outcome, reason, rejected.hint, **rejected.details)


def _library_verdict(report: LibraryReport, best: LibraryReport, provider: str) -> Verdict:
    details: dict[str, Any] = {"provider": provider}
    if report.score is not None:
        details["score"] = report.score
    hint: str | None = None
    if report.rejected is not None:
        outcome, reason, hint = report.rejected.outcome, report.rejected.reason, report.rejected.hint
        details |= report.rejected.details
    elif report is best:
        outcome, reason = Outcome.AVAILABLE, "the only one"
        if report.score is not None:
            reason = f"the highest score: {report.score}"
    elif (report.name, report.score) == (best.name, best.score):
        outcome, reason = Outcome.SHADOWED, f"the same as {best.path}, which comes first"
        hint = "remove one of the two"
    elif report.score is None:
        outcome, reason = Outcome.OUTSCORED, f"it exports no score, and {best.name} comes before it"
    else:
        outcome, reason = Outcome.OUTSCORED, f"it scores {report.score}; {best.name} scores {best.score}"
    return Verdict(report.name, "library", outcome, reason, hint, report.path, report.elapsed, details)


def _first_steps(verdicts: Sequence[Verdict]) -> list[str]:
    """What to do where nothing works: mend the broken, let in the blocked, install what runs everywhere."""
    hints = [
        verdict.hint for verdict in verdicts if verdict.kind == "plugin" and verdict.outcome.broken and verdict.hint
    ]
    hints += [verdict.hint for verdict in verdicts if verdict.outcome is Outcome.BLOCKED and verdict.hint]
    absent = [verdict for verdict in verdicts if verdict.outcome is Outcome.NOT_INSTALLED]
    hints += [verdict.hint for verdict in absent if verdict.hint and verdict.details.get("backend") == "cpu"]
    return list(dict.fromkeys(hints))[:2]


def _absent(entry: Known, version: str | None) -> Verdict:
    """The verdict on a published plugin that offers nothing: not installed, or of a ``version`` before entry points."""
    details = {"backend": entry.name, "distribution": entry.distribution}
    if version is not None:
        return Verdict(
            entry.distribution,
            "plugin",
            Outcome.INCOMPATIBLE_API,
            f"it is installed and brings no entry point in the group {GROUP!r}",
            f"pip install --upgrade {entry.distribution}",
            origin=f"{entry.distribution} {version}".strip(),
            details=details,
        )
    sign = entry.sign
    reason = f"the plugin for {entry.offers} is not installed"
    if sign:
        reason += f", though {sign} says that there is one"
    return Verdict(
        entry.distribution, "plugin", Outcome.NOT_INSTALLED, reason, entry.install, details={**details, "sign": sign}
    )
