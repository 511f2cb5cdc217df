"""All four stages over every candidate, and a verdict for each. What a registry then ranks and opens."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotshoe_core.device import Device, NativeLibraries, Provider
from hotshoe_core.reference import ReferenceProvider
from hotshoe_loader import probe
from hotshoe_loader.catalog import CATALOG, Known, by_distribution, known
from hotshoe_loader.find import (
    GROUP,
    LibraryCandidate,
    PluginCandidate,
    distribution_version,
    find_libraries,
    find_plugins,
    list_libraries,
)
from hotshoe_loader.options import Options, normalise
from hotshoe_loader.rank import REFERENCE, choose_library
from hotshoe_loader.verdict import Outcome, Rejected, Verdict
from hotshoe_loader.vet import Blocklist, vet_library, vet_plugin, vet_provider

__all__ = ["Survey", "take_survey"]

logger = logging.getLogger("hotshoe.loader")


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is. ``devices`` are not ranked: that depends on who asks.

    notes: words about the options. opened: providers of which a backend was opened since.
    """

    devices: tuple[Device, ...]
    providers: Mapping[str, Provider]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
    opened: set[str] = field(default_factory=set)


def take_survey(options: Options) -> Survey:
    """Finds, vets and probes every candidate that ``options.block`` and ``options.paths`` leave."""
    surveyor = _Surveyor(options)
    for plugin in find_plugins():
        surveyor.plugin(plugin)
    surveyor.strays()
    surveyor.not_installed()
    surveyor.reference()
    return surveyor.result()


class _Surveyor:
    def __init__(self, options: Options) -> None:
        self._paths = options.paths
        self._relative = options.relative
        self._block = Blocklist(options.block)
        self._manager: Any = None  # pluggy's; made for the first plugin, as importing it costs 20 ms
        self._devices: dict[str, Device] = {}
        self._providers: dict[str, Provider] = {}
        self._owners: dict[str, PluginCandidate] = {}
        self._verdicts: list[Verdict] = []
        self._backends: set[str] = set()  # names of native backends that some provider drives
        self._distributions: set[str] = set()

    def result(self) -> Survey:
        # A published plugin may be blocked without being there; another name that met nothing may be a slip.
        notes = [f"block={name!r} met nothing" for name in self._block.unmet if known(name) is None]
        for verdict in self._verdicts:
            # A broken plugin was installed to be used; an absent device or a block is nobody's surprise.
            level = logging.WARNING if verdict.outcome.broken and verdict.kind == "plugin" else logging.DEBUG
            hint = f" ({verdict.hint})" if verdict.hint else ""
            logger.log(level, "%s%s", verdict, hint)
        if set(self._providers) == {REFERENCE}:
            logger.warning(
                "no plugin offers a device, so models run on the reference backend, which is NumPy and slow; "
                "%s, or see load_all().explain()",
                " or ".join(_first_steps(self._verdicts)) or "install a plugin",
            )
        return Survey(tuple(self._devices.values()), self._providers, tuple(self._verdicts), tuple(notes))

    # -- plugins and their providers --

    def plugin(self, plugin: PluginCandidate) -> None:
        start = time.perf_counter()
        published = by_distribution(normalise(plugin.distribution))
        details = {"plugin": plugin.name, "distribution": plugin.distribution}
        if published is not None:
            details["backend"] = published.name
        if plugin.shadowed_by is None:
            self._distributions.add(normalise(plugin.distribution))
        try:
            vet_plugin(plugin, self._block)
            module = probe.import_plugin(plugin)
            if self._manager is None:
                self._manager = probe.new_manager()
            providers = probe.ask_providers(self._manager, plugin, module)
        except Rejected as rejected:
            self._reject(rejected, plugin.name, plugin, start, details)
            return
        for provider in providers:
            self._provider(provider, plugin, start, details)
            start = time.perf_counter()

    def _provider(self, provider: Any, plugin: PluginCandidate, start: float, details: dict[str, Any]) -> None:
        name, place = plugin.name, len(self._verdicts)  # before the verdicts on its libraries
        try:
            probe.guarded(
                lambda: vet_provider(provider, plugin, self._block), "reading its name", plugin, Outcome.CRASHED
            )
            name, details = provider.name, {**details, "provider": provider.name, "family": provider.family}
            self._refuse_taken(name, plugin)
            native = probe.native_libraries(provider, plugin)
            library = None
            if native is not None:
                details["backend"] = native.name
                library = self._library(provider, native, plugin, details)
            devices = probe.list_devices(provider, library.path if library else None, plugin)
            kept, dropped = self._admit(devices)
        except Rejected as rejected:
            self._reject(rejected, name, plugin, start, details, place)
            return
        self._providers[name] = provider
        self._owners[name] = plugin
        reason = f"offers {', '.join(device.name for device in kept)}"
        if dropped:
            details["dropped"] = dropped
            reason += f"; not used: {'; '.join(dropped)}"
        details["devices"] = [device.name for device in kept]
        self._verdicts.insert(
            place,
            Verdict(
                name,
                "plugin",
                Outcome.LOADED,
                reason,
                origin=plugin.origin,
                elapsed=time.perf_counter() - start,
                details=details,
            ),
        )

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

    def _admit(self, devices: Sequence[Device]) -> tuple[list[Device], list[str]]:
        """Takes devices in whose names are free and not blocked; returns them, and why the others are not."""
        kept: list[Device] = []
        blocked: list[str] = []
        taken: list[str] = []
        for device in devices:
            other = self._devices.get(device.name)
            if self._block.device(device):
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

    def _library(
        self, provider: Provider, native: NativeLibraries, plugin: PluginCandidate, details: dict[str, Any]
    ) -> LibraryCandidate:
        """The library of one provider, chosen among its own and those in the user's folders, which come first."""
        self._backends.add(native.name)
        self._block.refuse(native.name)
        found = find_libraries(native.name, [*self._paths, *native.directories])
        if not found:
            raise Rejected(
                Outcome.MISSING_DEPENDENCY,
                f"there is no libggml-{native.name} in {', '.join(map(str, native.directories)) or 'no folder'}",
                f"pip install --force-reinstall {plugin.distribution}",
            )
        probe.open_core(native, plugin)
        scores: list[probe.Score] = []
        elapsed: dict[Path, float] = {}
        rejected: list[Verdict] = []
        for candidate in found:
            start = time.perf_counter()
            try:
                vet_library(candidate, self._block)
                scores.append(probe.score_library(candidate))
            except Rejected as why:
                self._reject(why, candidate.name, candidate, start, {"provider": provider.name})
                rejected.append(self._verdicts[-1])
            elapsed[candidate.path] = time.perf_counter() - start
        best = choose_library(scores)
        if best is None:
            raise _none_usable(native, rejected, plugin)
        for score in scores:
            self._verdicts.append(_library_verdict(score, best, provider.name, elapsed[score.library.path]))
        details["library"] = str(best.library.path)
        if best.value is not None:
            details["score"] = best.value
        return best.library

    def strays(self) -> None:
        """Judges the user's folders themselves, and libraries in them that no installed plugin drives."""
        for entry in self._relative:
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
        for folder in self._paths:
            if not folder.is_dir():
                reason = "paths= or HOTSHOE_PATH names it, and there is no such folder"
                self._verdicts.append(
                    Verdict(str(folder), "library", Outcome.NOT_INSTALLED, reason, origin=str(folder))
                )
            for library in list_libraries(folder):
                stem = f"{library.backend}-{library.variant}"
                if not any(stem.startswith(f"{backend}-") for backend in self._backends):
                    self._stray(library)

    def _stray(self, library: LibraryCandidate) -> None:
        start = time.perf_counter()
        published = known(library.backend)
        try:
            vet_library(library, self._block)
            raise Rejected(
                Outcome.NOT_INSTALLED,
                f"no usable plugin drives ggml's {library.backend!r} backend",
                published.install if published else f"install a plugin whose libraries are named {library.backend!r}",
            )
        except Rejected as rejected:
            self._reject(rejected, library.name, library, start, {"backend": library.backend})

    # -- what is not there, and what always is --

    def not_installed(self) -> None:
        """A verdict for each published plugin made for this platform, unless it or another one drives its backend."""
        driven = self._backends | {name.partition(":")[0] for name in self._devices}
        for entry in CATALOG:
            if entry.relevant and entry.distribution not in self._distributions and entry.name not in driven:
                self._verdicts.append(_absent(entry))

    def reference(self) -> None:
        provider = ReferenceProvider()
        verdict = Verdict(
            REFERENCE,
            "plugin",
            Outcome.AVAILABLE,
            "NumPy, slow and right: the last resort",
            origin="hotshoe",
            details={"provider": REFERENCE, "family": REFERENCE, "devices": [REFERENCE]},
        )
        # Its type is CPU, but block="cpu" means CPU backends, not the last resort.
        if self._block.hit(REFERENCE):
            reason = "'reference' is blocked by block= or HOTSHOE_BLOCK"
            self._verdicts.append(replace(verdict, outcome=Outcome.BLOCKED, reason=reason))
            return
        self._providers[REFERENCE] = provider
        for device in provider.devices(None):
            self._devices[device.name] = device
        self._verdicts.append(verdict)

    def _reject(
        self,
        rejected: Rejected,
        name: str,
        candidate: PluginCandidate | LibraryCandidate,
        start: float,
        details: Mapping[str, Any],
        place: int | None = None,
    ) -> None:
        plugin = isinstance(candidate, PluginCandidate)
        self._verdicts.insert(
            len(self._verdicts) if place is None else place,
            Verdict(
                name,
                "plugin" if plugin else "library",
                rejected.outcome,
                rejected.reason,
                rejected.hint,
                candidate.origin if isinstance(candidate, PluginCandidate) else str(candidate.path),
                time.perf_counter() - start,
                {**details, **rejected.details},
            ),
        )


def _library_verdict(score: probe.Score, best: probe.Score, provider: str, elapsed: float) -> Verdict:
    details: dict[str, Any] = {"provider": provider}
    if score.value is not None:
        details["score"] = score.value
    if score is best:
        outcome, reason = Outcome.LOADED, "the only one"
        if score.value is not None:
            reason = f"the highest score: {score.value}"
    elif score.value is None:
        outcome, reason = Outcome.OUTSCORED, f"it exports no score, and {best.library.name} comes before it"
    else:
        outcome, reason = Outcome.OUTSCORED, f"it scores {score.value}; {best.library.name} scores {best.value}"
    return Verdict(
        score.library.name,
        "library",
        outcome,
        reason,
        origin=str(score.library.path),
        elapsed=elapsed,
        details=details,
    )


def _none_usable(native: NativeLibraries, verdicts: Sequence[Verdict], plugin: PluginCandidate) -> Rejected:
    """The provider's own rejection when all of its libraries were rejected: by the most telling of their outcomes."""
    why = "; ".join(f"{verdict.candidate}: {verdict.reason}" for verdict in verdicts)
    broken = [verdict for verdict in verdicts if verdict.outcome.broken]
    if broken:
        return Rejected(broken[0].outcome, f"none of its libraries can be used: {why}", broken[0].hint)
    if all(verdict.outcome is Outcome.BLOCKED for verdict in verdicts):
        return Rejected(Outcome.BLOCKED, f"all of its libraries are blocked: {why}", verdicts[0].hint)
    return Rejected(
        Outcome.NO_DEVICE,
        f"none of its libraries runs on this machine: {why}",
        f"build one that does: pip install --no-binary {plugin.distribution} {plugin.distribution}",
    )


def _first_steps(verdicts: Sequence[Verdict]) -> list[str]:
    """What to do where nothing works: mend the broken, let in the blocked, install what runs everywhere."""
    hints = [
        verdict.hint for verdict in verdicts if verdict.kind == "plugin" and verdict.outcome.broken and verdict.hint
    ]
    hints += [verdict.hint for verdict in verdicts if verdict.outcome is Outcome.BLOCKED and verdict.hint]
    absent = [verdict for verdict in verdicts if verdict.outcome is Outcome.NOT_INSTALLED]
    hints += [verdict.hint for verdict in absent if verdict.hint and verdict.details.get("backend") == "cpu"]
    return list(dict.fromkeys(hints))[:2]


def _absent(entry: Known) -> Verdict:
    details = {"backend": entry.name, "distribution": entry.distribution}
    version = distribution_version(entry.distribution)
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
