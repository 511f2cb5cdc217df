"""Registry: what ``load_all`` found, ranked; it selects devices and opens backends over them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.errors import BackendError, InputTypeError, PluginError
from hotshoe_core.errors.arguments import listed
from hotshoe_core.errors.text import printable
from hotshoe_loader import explain as words
from hotshoe_loader.activate import Offer, backends_over, changes_by, open_backend
from hotshoe_loader.options import Options
from hotshoe_loader.rank import matching, rank
from hotshoe_loader.servers import announce, endpoint_of, lent_by, withdraw
from hotshoe_loader.survey import Survey
from hotshoe_loader.verdict import Outcome, Rejected, Verdict

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import Backend

__all__ = ["Registry"]

logger = logging.getLogger("hotshoe.loader")


class Registry:
    """The devices of this machine, best first, and a verdict on everything that could have offered one.

    Made by ``load_all``. It stays as it is but for what it is told to do: ``open`` brings a backend into the
    process, ``unload`` takes devices out, ``reload`` searches again.
    """

    __slots__ = ("_failed", "_look_again", "_lost", "_opened", "_options", "_ranked", "_survey", "_unloaded")

    def __init__(self, survey: Survey, options: Options, look_again: Callable[[Registry, Options], Survey]) -> None:
        """Ranks what a survey found. Raises DeviceNotFoundError if a required device is not there.

        look_again: takes a fresh survey for this registry; see ``reload``.
        """
        self._options = options
        self._look_again = look_again
        # What became of providers since the survey: opened here; tested well and failed here; unloaded by the user.
        self._opened: set[str] = set()
        self._failed: dict[str, Rejected] = {}
        self._lost: dict[str, str] = {}  # devices that went away while a backend was open on them, and why
        self._unloaded: set[str] = set()
        self._take(survey)

    def _take(self, survey: Survey) -> None:
        options = self._options
        ranked = rank(survey.devices, options.prefer, options.require)
        for token in words.unmet(options.require, ranked):
            raise words.not_found(f"require={token!r}", token, ranked, survey.verdicts)
        self._survey, self._ranked = survey, ranked
        self._failed.clear()
        self._lost.clear()
        self._unloaded.clear()
        for token in words.unmet(options.prefer, ranked):
            logger.warning("prefer=%r met no device; using %s", token, self.why() if ranked else "none")

    def __repr__(self) -> str:
        return f"<Registry: {', '.join(device.name for device in self.devices) or 'no device'}>"

    def _repr_html_(self) -> str:
        from hotshoe_core.contract.html import Html, device_table, table

        rows = [(v.candidate, v.outcome.value, v.reason, v.hint or "") for v in self.verdicts]
        verdicts = table(["candidate", "outcome", "reason", "next step"], rows)
        return Html(device_table(self.devices, self.why() if self.devices else "no device") + verdicts)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every usable device, best first. Memory is that of the probe, which may be of an earlier start."""
        gone = self._unloaded | self._failed.keys()
        return tuple(device for device in self._ranked if device.provider not in gone) if gone else self._ranked

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What became of every candidate."""
        return tuple(map(self._now, self._survey.verdicts))

    def _now(self, verdict: Verdict) -> Verdict:
        """A verdict of the survey, and what became of the candidate since."""
        name = str(verdict.details.get("provider"))
        if not verdict.outcome.usable:
            return verdict
        if name in self._failed and verdict.kind == "plugin":
            failed = self._failed[name]
            reason = f"it passed its test in a child process, and failed in this one: {failed.reason}"
            details: Mapping[str, Any] = {**verdict.details, **failed.details}
            return replace(verdict, outcome=failed.outcome, reason=reason, hint=failed.hint, details=details)
        if name in self._unloaded:
            hint = "registry.reload() offers it again"
            return replace(verdict, outcome=Outcome.BLOCKED, reason="it was unloaded by registry.unload()", hint=hint)
        if name not in self._opened:
            return verdict
        offered = verdict.details.get("devices", ())
        lost = [self._lost[each] for each in offered if each in self._lost] if verdict.kind == "plugin" else []
        if lost:
            outcome = Outcome.NO_DEVICE if len(lost) == len(offered) else Outcome.LOADED
            hint = "load the model again when the device is back, or on another"
            return replace(verdict, outcome=outcome, reason="; ".join(lost), hint=hint)
        offer = self._survey.offers.get(name)
        changes = changes_by(offer.plugin) if offer and offer.plugin and verdict.kind == "plugin" else []
        details = {**verdict.details, "changes": changes} if changes else verdict.details
        return replace(verdict, outcome=Outcome.LOADED, details=details)

    def explain(self, name: str = "") -> str:
        """In words: what was found, what is used and why; of everything, or of one name.

        ``name``: a device, provider, plugin, library, or a type such as "gpu".
        """
        return words.explain(name, self.devices, self.verdicts, self._options, self._survey.notes)

    def select(self, device: str | Iterable[str] | None = None) -> list[Device]:
        """The devices a request means, the best or first-named first.

        None is the best device, of those that were not lost since. A name is a device ("cpu", "cuda:0"); or a type
        ("gpu"), a backend ("cuda"), a provider ("ggml-cuda") or a family ("ggml"), and then all devices of the provider
        that has the best of them, and of that one's type: a model is not spread over GPUs and the CPU because a plugin
        has both. "rpc://host:port" is all devices of that server, which is looked for if it is not known yet. Several
        names, or one text with commas between them, are taken in their order.

        Raises DeviceNotFoundError, which carries the verdicts and names the next step.
        """
        if device is None:
            if not self.devices:
                raise words.not_found("device=None", "cpu", self.devices, self.verdicts)
            return [next((item for item in self.devices if item.name not in self._lost), self.devices[0])]
        given = [device] if isinstance(device, str) else listed("device", device, "a name or several", InputTypeError)
        if not given or not all(isinstance(token, str) for token in given):
            raise InputTypeError(f"device= takes None, a name or several names, got {device!r:.100}")
        tokens = [name.strip() for token in given for name in token.split(",")]
        chosen: dict[str, Device] = {}
        for token in tokens:
            endpoint = endpoint_of(token)
            found = matching(token, self.devices) if endpoint is None else self._lent_by(endpoint)
            if not found:
                raise words.not_found(f"device={token!r}", token, self.devices, self.verdicts)
            # Two providers may show one physical GPU twice; devices of one provider are distinct.
            best = found[0]
            alike = [item for item in found if (item.provider, item.type) == (best.provider, best.type)]
            chosen.update({item.name: item for item in alike})
        return list(chosen.values())

    def _lent_by(self, endpoint: str) -> list[Device]:
        """The devices of a server. Raises DeviceNotFoundError if it lends none, and then it is forgotten."""
        found = lent_by(endpoint, self.devices)
        if not found:
            announce(endpoint)
            self.reload()
            found = lent_by(endpoint, self.devices)
        if not found:
            error = words.not_found(f"device='rpc://{endpoint}'", "rpc", self.devices, self.verdicts)
            withdraw(endpoint)
            self.reload()
            raise error
        return found

    def why(self, device: str | Iterable[str] | Device | None = None) -> str:
        """One line: the device a request means, and why that one."""
        chosen = [device] if isinstance(device, Device) else self.select(device)
        line = words.why(chosen[0], self.devices, self.verdicts, self._options)
        return f"{line}; together with {', '.join(item.name for item in chosen[1:])}" if chosen[1:] else line

    def open(
        self,
        device: str | Iterable[str] | Device | None = None,
        params: BackendParams | None = None,
        *,
        with_cpu: bool = False,
    ) -> Backend:
        """A backend opened over the devices a request means; see ``select``. The caller closes it.

        with_cpu: and over the CPU of their family, behind them, where there is one that was not asked for.

        The plugin is imported now, if it was not before. Where that fails, though it worked in a child process,
        the next best device is opened with a warning, if nothing was asked for: no ``device`` here, and no
        ``require`` of load_all.

        Raises:
            DeviceNotFoundError: no such device; a missing GPU is never replaced by the CPU when asked for.
            BackendError: the devices belong to different families, or the provider could not open them.
            PluginError: the plugin worked in its child process, and does not in this one.
        """
        chosen = [device] if isinstance(device, Device) else self.select(device)
        if with_cpu:
            chosen = self._with_cpu(chosen)
        try:
            return self._open(chosen, params or BackendParams())
        except PluginError as error:
            # A failed provider's devices are gone from self.devices, so this ends.
            if device is not None or self._options.require or not self.devices or chosen[0] in self.devices:
                raise
            logger.warning("%s; using %s", error, self.why())
            return self.open(None, params, with_cpu=with_cpu)

    def _with_cpu(self, chosen: list[Device]) -> list[Device]:
        if any(item.type is DeviceType.CPU for item in chosen):
            return chosen
        cpus = [item for item in self.devices if item.type is DeviceType.CPU and item.family == chosen[0].family]
        return [*chosen, *cpus[:1]]

    def _open(self, chosen: list[Device], params: BackendParams) -> Backend:
        offers = self._offers(chosen)
        logger.info("opening %s", self.why(chosen[0]))
        try:
            backend = open_backend(offers, chosen, params)
        except Rejected as rejected:
            for offer in offers:
                offer.forget()
            self._failed[offers[0].name] = rejected
            raise PluginError(
                f"{_names(chosen)} passed its test in a child process, and failed in this one: {rejected.reason}",
                hint=rejected.hint,
            ) from rejected
        self._opened.update(item.provider for item in chosen)
        for item in chosen:
            self._lost.pop(item.name, None)  # it is back
        backend.on_lost = self._lost.__setitem__
        _warn_of_ignored(backend, params)
        return backend

    def _offers(self, chosen: list[Device]) -> list[Offer]:
        """The providers of ``chosen``. The first one opens them all, as providers of a family share an engine."""
        families = {device.family: device.name for device in chosen}
        if len(families) > 1:
            raise BackendError(
                f"one backend cannot span the devices {_names(chosen)}: they belong to the families "
                f"{', '.join(families)}; expected one family",
                hint="open a backend for each family",
            )
        here = {name: offer for name, offer in self._survey.offers.items() if name not in self._unloaded}
        for device in chosen:
            if device.provider not in here:
                raise BackendError(
                    f"device {device.name!r} is of provider {device.provider!r}, which is not in this registry; "
                    f"it has: {', '.join(here)}",
                    hint="take devices from registry.devices",
                )
        return [here[name] for name in dict.fromkeys(device.provider for device in chosen)]

    def unload(self, name: str, *, force: bool = False) -> None:
        """Takes the devices of a provider out of this registry: they cannot be opened any more.

        ``name``: a device, backend or provider. Nothing is unmapped, as native code that was unmapped crashes later:
        the memory of its libraries stays, that of backends and models does not.

        Raises:
            DeviceNotFoundError: nothing here is called so.
            BackendError: backends over these devices are open, and ``force`` is not given, which closes them.
        """
        providers = {device.provider for device in self.select(name)}
        live = {id(backend): backend for provider in providers for backend in backends_over(provider)}
        if live and not force:
            raise BackendError(
                f"{name!r} cannot be unloaded: {len(live)} open backend(s) use {_names(self.select(name))}",
                hint="close the models that run on it, or unload(..., force=True) closes their backends under them",
            )
        for backend in live.values():
            backend.close()
        self._unloaded.update(providers)

    def reload(self) -> Registry:
        """Searches again, in place: finds what was installed since, and offers again what was unloaded.

        Backends that are open stay as they are. A plugin that was imported is not imported anew: of one that was
        upgraded, the old version stays in this process until it ends. Returns this registry.

        Raises DeviceNotFoundError, and stays as it was, if a required device is not there any more.
        """
        self._take(self._look_again(self, self._options))
        self._opened &= self._survey.offers.keys()
        return self


def _warn_of_ignored(backend: Backend, params: BackendParams) -> None:
    """One warning for each parameter that was set and that the backend does not act on."""
    for field in fields(BackendParams):
        value = getattr(params, field.name)
        if value != field.default and field.name not in backend.honours:
            name = printable(str(backend.name), 80)
            logger.warning("%s does not honour %s=%r: it is ignored", name, field.name, value)


def _names(devices: Iterable[Device]) -> str:
    return ", ".join(device.name for device in devices)
