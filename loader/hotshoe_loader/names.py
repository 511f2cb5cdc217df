"""Who may be called what: names of providers and devices, given out in the order in which plugins are found.

Names of this project's own plugins stay theirs, also where they are not installed: what a user means by "cpu" or
"cuda:0" does not depend on whose entry point sorts first. Of two strangers the first in the order of names gets it;
every such conflict is a verdict that names both, and a warning.
"""

from __future__ import annotations

from collections.abc import Mapping

from hotshoe_core.contract.device import Device
from hotshoe_loader.catalog import by_distribution, owner_of_device, owner_of_provider
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.options import normalise
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.verdict import Outcome, Rejected
from hotshoe_loader.vet import Policy

__all__ = ["Names"]


class Names:
    """The names that are taken so far, and by whom."""

    def __init__(self) -> None:
        self._providers: dict[str, PluginCandidate] = {}
        self._devices: dict[str, Device] = {}
        self._owners: dict[str, PluginCandidate] = {}  # of device names

    @property
    def devices(self) -> Mapping[str, Device]:
        return self._devices

    def refuse_taken(self, name: str, family: str, plugin: PluginCandidate) -> None:
        """Raises Rejected if a provider of ``plugin`` may not be called so."""
        if REFERENCE in (name, family):
            raise Rejected(
                Outcome.SHADOWED,
                f"the name {REFERENCE!r} is that of hotshoe's own last resort",
                f"report it to the authors of {plugin.distribution}: the provider needs another name",
                conflict=["hotshoe", plugin.origin],
            )
        own = owner_of_provider(normalise(name))
        if own is not None and not _ours(plugin):
            raise Rejected(
                Outcome.SHADOWED,
                f"{plugin.origin} calls its provider {name!r}, which is the name of {own.distribution}",
                f"report it to the authors of {plugin.distribution}: the provider needs another name",
                conflict=[own.distribution, plugin.origin],
            )
        owner = self._providers.get(normalise(name))
        if owner is not None:
            raise Rejected(
                Outcome.SHADOWED,
                f"{plugin.origin} has a provider {name!r}, and one comes from {owner.origin} already (entry point "
                f"{owner.name!r})",
                f"uninstall one of the two, or block={owner.distribution!r} to use this one",
                conflict=[owner.origin, plugin.origin],
            )

    def take(self, name: str, plugin: PluginCandidate) -> None:
        self._providers[normalise(name)] = plugin

    def admit(self, devices: list[Device], plugin: PluginCandidate, policy: Policy) -> tuple[list[Device], list[str]]:
        """Takes devices in whose names are free and not blocked; returns them, and why the others are not.

        Raises Rejected if none is left.
        """
        kept: list[Device] = []
        blocked: list[str] = []
        taken: list[str] = []
        conflict: list[str] = []
        for device in devices:
            owner = self._owner_of(device, plugin)
            if policy.device(device):
                blocked.append(f"{device.name} is blocked")
            elif owner is not None:
                who, origin = owner
                taken.append(f"the name {device.name!r} is taken by {who}")
                conflict.append(origin)
            else:
                self._devices[device.name] = device
                self._owners[device.name] = plugin
                kept.append(device)
        if kept:
            return kept, [*taken, *blocked]
        reason = "none of its devices is used: " + "; ".join([*taken, *blocked])
        if taken:
            hint = f"block={conflict[0]!r} to use this one, or report it to the authors of {plugin.distribution}"
            if conflict[0] not in {each.distribution for each in self._owners.values()}:
                hint = f"report it to the authors of {plugin.distribution}: the device needs another name"
            raise Rejected(Outcome.SHADOWED, reason, hint, conflict=[*conflict, plugin.origin])
        raise Rejected(Outcome.BLOCKED, reason, "take it out of block= or HOTSHOE_BLOCK")

    def _owner_of(self, device: Device, plugin: PluginCandidate) -> tuple[str, str] | None:
        """Who has a device's name, in words, and the distribution; None if it is free."""
        if device.name.partition(":")[0] == REFERENCE:
            return repr(REFERENCE), "hotshoe"
        own = owner_of_device(device.name)
        if own is not None and not _ours(plugin):
            return f"{own.distribution}, whose devices are called so", own.distribution
        other = self._devices.get(device.name)
        if other is None:
            return None
        owner = self._owners[device.name]
        return f"{other.provider!r} of {owner.origin}", owner.distribution


def _ours(plugin: PluginCandidate) -> bool:
    return by_distribution(normalise(plugin.distribution)) is not None
