"""Registry: what ``load_all`` found, ranked; it selects devices and opens backends over them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hotshoe_core.device import BackendParams, Device, Provider
from hotshoe_core.errors import BackendError, HotshoeError, PluginError
from hotshoe_loader import explain as words
from hotshoe_loader.options import Options
from hotshoe_loader.rank import matching, rank
from hotshoe_loader.survey import Survey
from hotshoe_loader.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from hotshoe_core.backend import Backend

__all__ = ["Registry"]

logger = logging.getLogger("hotshoe.loader")


class Registry:
    """The devices of this machine, best first, and a verdict on everything that could have offered one.

    Made by ``load_all``; never changes, but for a verdict that turns from available to loaded when its
    backend is opened.
    """

    __slots__ = ("_devices", "_options", "_survey")

    def __init__(self, survey: Survey, options: Options) -> None:
        """Ranks what a survey found. Raises DeviceNotFoundError if a required device is not there."""
        self._survey = survey
        self._options = options
        self._devices = rank(survey.devices, options.prefer, options.require)
        for token in words.unmet(options.require, self._devices):
            raise words.not_found(f"require={token!r}", token, self._devices, survey.verdicts)
        for token in words.unmet(options.prefer, self._devices):
            logger.warning("prefer=%r met no device; using %s", token, self.why() if self._devices else "none")

    def __repr__(self) -> str:
        return f"<Registry: {', '.join(device.name for device in self._devices) or 'no device'}>"

    @property
    def devices(self) -> tuple[Device, ...]:
        """Every usable device, best first."""
        return self._devices

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What became of every candidate."""
        return tuple(
            replace(verdict, outcome=Outcome.LOADED)
            if verdict.outcome is Outcome.AVAILABLE and verdict.details.get("provider") in self._survey.opened
            else verdict
            for verdict in self._survey.verdicts
        )

    def explain(self, name: str = "") -> str:
        """In words: what was found, what is used and why; of everything, or of one name.

        ``name``: a device, provider, plugin, library, or a type such as "gpu".
        """
        return words.explain(name, self._devices, self.verdicts, self._options, self._survey.notes)

    def select(self, device: str | Iterable[str] | None = None) -> list[Device]:
        """The devices a request means, the best or first-named first.

        None is the best device. A name is a device ("cpu", "cuda:0"); or a type ("gpu"), a backend ("cuda"),
        a provider ("ggml-cuda") or a family ("ggml"), and then all devices of the provider that has the best
        of them. Several names are taken in their order.

        Raises DeviceNotFoundError, which carries the verdicts and names the next step.
        """
        if device is None:
            if not self._devices:
                raise words.not_found("device=None", "cpu", self._devices, self.verdicts)
            return [self._devices[0]]
        tokens = [device] if isinstance(device, str) else list(device)
        wrong = [token for token in tokens if not isinstance(token, str)]
        if wrong or not tokens:
            raise TypeError(f"device= takes None, a name or several names, got {device!r}")
        chosen: dict[str, Device] = {}
        for token in tokens:
            found = matching(token, self._devices)
            if not found:
                raise words.not_found(f"device={token!r}", token, self._devices, self.verdicts)
            # Two providers may show one physical GPU twice; devices of one provider are distinct.
            chosen.update({item.name: item for item in found if item.provider == found[0].provider})
        return list(chosen.values())

    def why(self, device: str | Iterable[str] | Device | None = None) -> str:
        """One line: the device a request means, and why that one."""
        chosen = [device] if isinstance(device, Device) else self.select(device)
        line = words.why(chosen[0], self._devices, self.verdicts, self._options)
        return f"{line}; together with {', '.join(item.name for item in chosen[1:])}" if chosen[1:] else line

    def open(self, device: str | Iterable[str] | Device | None = None, params: BackendParams | None = None) -> Backend:
        """A backend opened over the devices a request means; see ``select``. The caller closes it.

        Raises:
            DeviceNotFoundError: no such device; a missing GPU is never replaced by the CPU when asked for.
            BackendError: the devices belong to different families, or the provider could not open them.
        """
        from hotshoe_core.backend import Backend

        chosen = [device] if isinstance(device, Device) else self.select(device)
        provider = self._provider(chosen)
        logger.info("opening %s", self.why(chosen[0]))
        try:
            backend = provider.open(chosen, params or BackendParams())
        except HotshoeError:
            raise
        except Exception as error:
            raise BackendError(
                f"provider {provider.name!r} could not open {_names(chosen)}: {type(error).__name__}: {error}",
                hint=f"another device may do: {_names(self._devices)}",
            ) from error
        if not isinstance(backend, Backend):
            raise PluginError(
                f"provider {provider.name!r} opened {type(backend).__name__}; expected a hotshoe_core Backend",
                hint=f"report it to the authors of provider {provider.name!r}",
            )
        self._survey.opened.update(item.provider for item in chosen)
        return backend

    def _provider(self, chosen: list[Device]) -> Provider:
        """The provider that opens ``chosen``: the first one's, as providers of a family share an engine."""
        families = {device.family: device.name for device in chosen}
        if len(families) > 1:
            raise BackendError(
                f"one backend cannot span the devices {_names(chosen)}: they belong to the families "
                f"{', '.join(families)}; expected one family",
                hint="open a backend for each family",
            )
        provider = self._survey.providers.get(chosen[0].provider)
        if provider is None:
            raise BackendError(
                f"device {chosen[0].name!r} is of provider {chosen[0].provider!r}, which is not in this registry; "
                f"it has: {', '.join(self._survey.providers)}",
                hint="take devices from registry.devices",
            )
        return provider


def _names(devices: Iterable[Device]) -> str:
    return ", ".join(device.name for device in devices)
