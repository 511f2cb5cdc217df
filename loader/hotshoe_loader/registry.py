"""Registry: the ranked result of ``load_all``. It selects devices and opens backends over them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe_core.contract.device import BackendParams, Device, DeviceType
from hotshoe_core.errors import BackendError, PluginError
from hotshoe_core.errors.text import printable
from hotshoe_loader import texts
from hotshoe_loader.activate import UsableProvider, backends_over, changes_by, open_backend
from hotshoe_loader.catalog import RPC
from hotshoe_loader.options import Options, normalise
from hotshoe_loader.rank import find_devices, rank
from hotshoe_loader.servers import add_server, devices_of, endpoint_of, remove_server
from hotshoe_loader.survey import NOTHING, Survey
from hotshoe_loader.verdict import Outcome, Rejected, Verdict
from hotshoe_loader.wanted import names_in

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import Backend

__all__ = ["Registry"]

logger = logging.getLogger("hotshoe.loader")


class _ReloadSurvey(Protocol):
    """Takes a new survey for a registry: a complete one, or with ``names`` at least what they and ``earlier`` need."""

    def __call__(
        self, registry: Registry, options: Options, names: Sequence[str] = (), earlier: Survey = NOTHING
    ) -> Survey: ...


class Registry:
    """The devices of this machine, best first, and a verdict on every candidate plugin and library.

    ``load_all`` creates it. It changes only when a method is called: ``open`` opens a backend, ``unload`` removes
    devices, ``reload`` searches again. ``survey``, ``extend`` and ``check_required`` are for ``load_all`` only.
    """

    __slots__ = ("_failed", "_lost", "_opened", "_options", "_ranked", "_reload_survey", "_unloaded", "survey")

    survey: Survey
    """What was found."""

    def __init__(self, survey: Survey, options: Options, reload_survey: _ReloadSurvey) -> None:
        """Rank the devices of a survey. ``reload_survey`` takes a new survey for this registry; see ``reload``."""
        self._options = options
        self._reload_survey = reload_survey
        # What happened after the survey. Keys and entries are names of providers, except in _lost.
        self._opened: set[str] = set()
        self._failed: dict[str, Rejected] = {}  # passed their test in a child process, failed in this process
        self._lost: dict[str, str] = {}  # devices that went away while a backend was open on them, and why
        self._unloaded: set[str] = set()  # by the user
        self.extend(survey)

    def extend(self, survey: Survey) -> None:
        """Use a survey with more reports."""
        options = self._options
        ranked = rank(survey.devices, options.prefer, options.require)
        self.survey, self._ranked = survey, ranked
        unmatched = texts.unmatched(options.prefer, ranked) if survey.complete else ()
        if unmatched:
            names = ", ".join(options.written("prefer", token) for token in unmatched)
            using = texts.describe(self.devices[0]) if self.devices else "none"
            logger.warning("%s matches no device; using %s", names, using)

    def check_required(self, survey: Survey | None = None) -> None:
        """Raise DeviceNotFoundError if a required device is missing. ``survey``: a new one, instead of the present."""
        survey = survey or self.survey
        for token in texts.unmatched(self._options.require, survey.devices):
            ranked = rank(survey.devices, self._options.prefer)
            error = texts.not_found(self._options.written("require", token), token, ranked, survey.verdicts)
            if ("require", token) in self._options.from_variables:
                error.hint = f"{error.hint}; or unset HOTSHOE_REQUIRE"
            raise error

    def __repr__(self) -> str:
        return f"<Registry: {', '.join(device.name for device in self.devices) or 'no device'}>"

    def _repr_html_(self) -> str:
        from hotshoe_core.contract.html import Html, device_table, table

        rows = [(v.candidate, v.outcome.value, v.reason, v.hint or "") for v in self.verdicts]
        verdicts = table(["candidate", "outcome", "reason", "next step"], rows)
        return Html(device_table(self.devices, self.why() if self.devices else "no device") + verdicts)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every usable device, best first. Its memory was read in the probe, which may be of an earlier start."""
        gone = self._unloaded | self._failed.keys()
        return tuple(device for device in self._ranked if device.provider not in gone) if gone else self._ranked

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict on every candidate, as of now."""
        return tuple(map(self._updated, self.survey.verdicts))

    def _updated(self, verdict: Verdict) -> Verdict:
        """A verdict of the survey, updated with what happened to the candidate after it."""
        name = str(verdict.details.get("provider"))
        if not verdict.outcome.usable:
            return verdict
        if name in self._failed and verdict.kind == "plugin":
            failed = self._failed[name]
            reason = f"it passed its test in a child process, but failed in this process: {failed.reason}"
            details: Mapping[str, Any] = {**verdict.details, **failed.details}
            return replace(verdict, outcome=failed.outcome, reason=reason, hint=failed.hint, details=details)
        if name in self._unloaded:
            hint = "registry.reload() makes it usable again"
            return replace(verdict, outcome=Outcome.BLOCKED, reason="it was unloaded by registry.unload()", hint=hint)
        if name not in self._opened:
            return verdict
        devices = verdict.details.get("devices", ())
        lost = [self._lost[device] for device in devices if device in self._lost] if verdict.kind == "plugin" else []
        if lost:
            outcome = Outcome.NO_DEVICE if len(lost) == len(devices) else Outcome.LOADED
            hint = "load the model again when the device is back, or on another device"
            return replace(verdict, outcome=outcome, reason="; ".join(lost), hint=hint)
        usable = self.survey.providers.get(name)
        changes = changes_by(usable.plugin) if usable and usable.plugin and verdict.kind == "plugin" else []
        details = {**verdict.details, "changes": changes} if changes else verdict.details
        return replace(verdict, outcome=Outcome.LOADED, details=details)

    def explain(self, name: str = "") -> str:
        """A text that says what was found, what is used, and why: about everything, or about one name.

        name: a device, provider, plugin, library, or a type such as "gpu".
        """
        return texts.explain(name, self.devices, self.verdicts, self._options, self.survey.notes)

    def select(self, device: str | Iterable[str] | None = None) -> list[Device]:
        """The devices that ``device`` means, in the order of its names; devices of one name best first.

        - None: the best device that was not lost.
        - A device's name: "cpu", "cuda:0".
        - A type ("gpu"), backend ("cuda"), provider ("ggml-cuda") or family ("ggml"): of the best matching device's
          provider all devices of the same type. So a model is not spread over GPUs and the CPU of one plugin.
        - "rpc://host:port": all devices of that server. The server is searched if it is not known yet.
        - Several names: as an iterable, or as one text separated by commas.

        Raises DeviceNotFoundError with the verdicts and the next step if a name matches no device, and
        InputTypeError if ``device`` has another type.
        """
        if device is None:
            if not self.devices:
                raise texts.none_left(self.verdicts)
            return [next((item for item in self.devices if item.name not in self._lost), self.devices[0])]
        chosen: dict[str, Device] = {}
        for token in names_in(device):
            endpoint = endpoint_of(token)
            found = find_devices(token, self.devices) if endpoint is None else self._devices_of_server(endpoint)
            if not found:
                raise texts.not_found(f"device={token!r}", token, self.devices, self.verdicts)
            # Two providers may list the same physical GPU; the devices of one provider are distinct.
            best = found[0]
            same = [item for item in found if (item.provider, item.type) == (best.provider, best.type)]
            chosen.update({item.name: item for item in same})
        return list(chosen.values())

    def _devices_of_server(self, endpoint: str) -> list[Device]:
        """The devices of a server. If it has none, forget the server and raise DeviceNotFoundError."""
        found = devices_of(endpoint, self.devices)
        if not found:
            add_server(endpoint)
            self._test_servers_again()
            found = devices_of(endpoint, self.devices)
        if not found:
            error = texts.not_found(f"device='rpc://{endpoint}'", "rpc", self.devices, self.verdicts)
            remove_server(endpoint)
            self._test_servers_again()
            raise error
        return found

    def _test_servers_again(self) -> None:
        """Test the plugin for servers again, and use the earlier reports on the others."""
        earlier = self.survey.without(RPC.distribution)
        for provider in self.survey.providers.values():
            if provider.plugin and normalise(provider.plugin.distribution) == RPC.distribution:
                self._failed.pop(provider.name, None)
                self._unloaded.discard(provider.name)
                for device in provider.devices:
                    self._lost.pop(device.name, None)
        self.extend(self._reload_survey(self, self._options, () if self.survey.complete else (RPC.name,), earlier))

    def why(self, device: str | Iterable[str] | Device | None = None) -> str:
        """One line: the device that ``device`` means (see ``select``), and why it is used."""
        chosen = [device] if isinstance(device, Device) else self.select(device)
        line = texts.why(chosen[0], self.devices, self.verdicts, self._options, self.survey.complete)
        return f"{line}; together with {', '.join(item.name for item in chosen[1:])}" if chosen[1:] else line

    def open(
        self,
        device: str | Iterable[str] | Device | None = None,
        params: BackendParams | None = None,
        *,
        with_cpu: bool = False,
    ) -> Backend:
        """Open a backend over the devices that ``device`` means; see ``select``. The caller closes it.

        with_cpu: add the CPU of the devices' family after them, unless a CPU is among them or the family has no CPU.

        This imports the plugin, if it is not imported yet. If a plugin that passed its test in a child process fails
        here, the next best device is opened with a warning, but only if no device was requested: neither ``device``
        here nor ``require`` of load_all.

        Raises:
            DeviceNotFoundError: no such device. The CPU never replaces a requested GPU.
            BackendError: the devices belong to different families, or the provider cannot open them.
            PluginError: the plugin passed its test in a child process, but failed in this process.
        """
        chosen = [device] if isinstance(device, Device) else self.select(device)
        if with_cpu:
            chosen = self._with_cpu(chosen)
        try:
            return self._open(chosen, params or BackendParams())
        except PluginError as error:
            # self.devices no longer contains the failed provider's devices, so the recursion ends.
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
        providers = self._providers(chosen)
        logger.info("opening %s", self.why(chosen[0]))
        try:
            backend = open_backend(providers, chosen, params)
        except Rejected as rejected:
            for provider in providers:
                provider.forget()
            self._failed[providers[0].name] = rejected
            raise PluginError(
                f"{_names(chosen)} passed its test in a child process, but failed in this process: {rejected.reason}",
                hint=rejected.hint,
            ) from rejected
        self._opened.update(item.provider for item in chosen)
        for item in chosen:
            self._lost.pop(item.name, None)  # the device is back
        backend.on_lost = self._note_lost
        _warn_of_ignored(backend, params)
        return backend

    def _note_lost(self, device: str, reason: str) -> None:
        """Remember that a device went away, and why. The backend calls this before it raises DeviceLostError."""
        self._lost[device] = reason

    def _providers(self, chosen: list[Device]) -> list[UsableProvider]:
        """The providers of ``chosen``. The first one opens them all, because providers of a family share an engine."""
        families = {device.family: device.name for device in chosen}
        if len(families) > 1:
            raise BackendError(
                f"one backend cannot span the devices {_names(chosen)}: they belong to the families "
                f"{', '.join(families)}; expected one family",
                hint="name devices of one family",
            )
        usable = {name: found for name, found in self.survey.providers.items() if name not in self._unloaded}
        for device in chosen:
            if device.provider not in usable:
                raise BackendError(
                    f"device {device.name!r} belongs to provider {device.provider!r}, which is not in this registry; "
                    f"it has: {', '.join(usable)}",
                    hint="use a device of registry.devices",
                )
        return [usable[name] for name in dict.fromkeys(device.provider for device in chosen)]

    def unload(self, name: str, *, force: bool = False) -> None:
        """Remove the devices of a provider from this registry. They can no longer be opened.

        name: a device, backend or provider. force: close the backends that are open over these devices.

        Native libraries stay mapped, because unmapped native code may crash later. The memory of backends and models
        is freed.

        Raises:
            DeviceNotFoundError: ``name`` matches no device.
            BackendError: backends over these devices are open, and ``force`` is False.
        """
        providers = {device.provider for device in self.select(name)}
        live = {id(backend): backend for provider in providers for backend in backends_over(provider)}
        if live and not force:
            raise BackendError(
                f"{name!r} cannot be unloaded: {len(live)} open backend(s) use {_names(self.select(name))}",
                hint="close the models that run on it, or close their backends with unload(..., force=True)",
            )
        for backend in live.values():
            backend.close()
        self._unloaded.update(providers)

    def reload(self) -> Registry:
        """Search again, in place: find new plugins, and make unloaded devices usable again. Returns this registry.

        Open backends are not affected. A plugin that is already imported is not imported again: if it was upgraded,
        the old version stays in this process until it ends.

        Raises DeviceNotFoundError if a required device is missing now; then the registry does not change.
        """
        survey = self._reload_survey(self, self._options)
        self.check_required(survey)
        self.extend(survey)
        self._failed.clear()
        self._lost.clear()
        self._unloaded.clear()
        self._opened &= self.survey.providers.keys()
        return self


def _warn_of_ignored(backend: Backend, params: BackendParams) -> None:
    """Log a warning for each parameter that was set and that the backend ignores."""
    for field in fields(BackendParams):
        value = getattr(params, field.name)
        if value != field.default and field.name not in backend.honours:
            name = printable(str(backend.name), 80)
            logger.warning("%s ignores %s=%r", name, field.name, value)


def _names(devices: Iterable[Device]) -> str:
    return ", ".join(device.name for device in devices)
