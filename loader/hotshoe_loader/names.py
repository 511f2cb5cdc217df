"""Unique names: which plugin's provider or device may use a name. A plugin that is found earlier gets a name first.

The names of this project's plugins are reserved, even if those plugins are not installed: the meaning of "cpu" or
"cuda:0" does not depend on the order of entry points. The name of an entry point is reserved for its plugin, too. If
two other plugins use one name, the first in the order of entry point names gets it. Each conflict is a verdict that
names both plugins, and a warning.
"""

from __future__ import annotations

from collections.abc import Sequence

from hotshoe_core.contract.device import Device
from hotshoe_loader.catalog import by_distribution, owner_of_device, owner_of_provider
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.options import normalise
from hotshoe_loader.policy import Policy
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["Names"]


class Names:
    """The names in use, and the plugin that uses each."""

    def __init__(self, plugins: Sequence[EntryPoint] = ()) -> None:
        """plugins: those that may be used. The name of the entry point of each is reserved for it."""
        self._reserved = {normalise(plugin.name): plugin for plugin in reversed(plugins)}
        self._providers: dict[str, EntryPoint] = {}
        self._devices: dict[str, tuple[Device, EntryPoint]] = {}

    def refuse_taken(self, name: str, family: str, plugin: EntryPoint) -> None:
        """Raise Rejected if a provider of ``plugin`` may not have this name or family."""
        rename = f"report it to the authors of {plugin.distribution}: the provider needs another name"
        if REFERENCE in (name, family):
            raise Rejected(
                Outcome.SHADOWED,
                f"the name {REFERENCE!r} is reserved for hotshoe's reference backend",
                rename,
                conflict=["hotshoe", plugin.origin],
            )
        owner = owner_of_provider(normalise(name))
        if owner is not None and not _is_ours(plugin):
            raise Rejected(
                Outcome.SHADOWED,
                f"{plugin.origin} calls its provider {name!r}, which is the name of {owner.distribution}",
                rename,
                conflict=[owner.distribution, plugin.origin],
            )
        taken = self._providers.get(normalise(name))
        first = taken or self._reserved_for_another(name, plugin)
        if first is not None:
            whose = f"{first.origin} already has one (entry point {first.name!r})"
            if taken is None:
                whose = f"that name is reserved for the entry point {first.name!r} of {first.origin}"
            raise Rejected(
                Outcome.SHADOWED,
                f"{plugin.origin} has a provider {name!r}, but {whose}",
                f"uninstall one of the two, or set HOTSHOE_BLOCK={first.distribution} to use this one",
                conflict=[first.origin, plugin.origin],
            )

    def _reserved_for_another(self, name: str, plugin: EntryPoint) -> EntryPoint | None:
        """The plugin of another distribution whose entry point has this name."""
        owner = self._reserved.get(normalise(name))
        return None if owner is None or owner.distribution == plugin.distribution else owner

    def take_provider(self, name: str, plugin: EntryPoint) -> None:
        self._providers[normalise(name)] = plugin

    def take_devices(
        self, devices: Sequence[Device], plugin: EntryPoint, policy: Policy
    ) -> tuple[list[Device], list[str]]:
        """Take the names of the devices that are free and not blocked.

        Returns these devices, and for each other device why it is not used. Raises Rejected if no device is left.
        """
        kept: list[Device] = []
        blocked: list[str] = []
        taken: list[str] = []
        conflict: list[str] = []
        for device in devices:
            owner = self._owner_of(device, plugin)
            if policy.blocks_device(device):
                blocked.append(f"{device.name} is blocked")
            elif owner is not None:
                who, distribution = owner
                taken.append(f"the name {device.name!r} is taken by {who}")
                conflict.append(distribution)
            else:
                self._devices[device.name] = device, plugin
                kept.append(device)
        if kept:
            return kept, [*taken, *blocked]
        reason = "none of its devices is used: " + "; ".join([*taken, *blocked])
        if taken:
            report = f"report it to the authors of {plugin.distribution}"
            hint = f"set HOTSHOE_BLOCK={conflict[0]} to use this one, or {report}"
            if conflict[0] not in {owner.distribution for _, owner in self._devices.values()}:
                hint = f"{report}: the device needs another name"
            raise Rejected(Outcome.SHADOWED, reason, hint, conflict=[*conflict, plugin.origin])
        raise Rejected(Outcome.BLOCKED, reason, "remove it from block= or HOTSHOE_BLOCK to use it")

    def _owner_of(self, device: Device, plugin: EntryPoint) -> tuple[str, str] | None:
        """The owner of a device's name: in words, and the distribution. None if the name is free."""
        if device.name.partition(":")[0] == REFERENCE:
            return repr(REFERENCE), "hotshoe"
        entry = owner_of_device(device.name)
        if entry is not None and not _is_ours(plugin):
            return f"{entry.distribution}, for which it is reserved", entry.distribution
        named = self._reserved_for_another(device.name.partition(":")[0], plugin)
        if named is not None:
            return f"the entry point {named.name!r} of {named.origin}", named.distribution
        if device.name not in self._devices:
            return None
        first, owner = self._devices[device.name]
        return f"{first.provider!r} of {owner.origin}", owner.distribution


def _is_ours(plugin: EntryPoint) -> bool:
    """Whether it is a plugin of this project."""
    return by_distribution(normalise(plugin.distribution)) is not None
