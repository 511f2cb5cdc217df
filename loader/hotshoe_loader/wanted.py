"""Which plugins a device's name asks for, by metadata only: a caller that names a device waits for no other plugin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hotshoe_core.contract.device import DeviceType
from hotshoe_core.errors import InputTypeError
from hotshoe_core.errors.arguments import listed
from hotshoe_loader.catalog import CPU, owner_of_provider
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.options import normalise
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.servers import endpoint_of

__all__ = ["backends_in", "named_plugins", "names_in", "plugins_for"]


def names_in(device: Any) -> list[str]:
    """The names in ``device=``: of a list of names, or of one text with commas. Raises InputTypeError for others."""
    expected = "a name or a list of names"
    given = [device] if isinstance(device, str) else listed("device", device, expected, InputTypeError)
    if not given or not all(isinstance(token, str) for token in given):
        raise InputTypeError(f"device= takes None, {expected}, got {device!r:.100}")
    return [name.strip() for token in given for name in token.split(",")]


def backends_in(names: Iterable[str]) -> set[str]:
    """The backends or plugins in names of devices: "cuda" in "cuda:0", "rpc" in "rpc://host:port"."""
    return {"rpc" if endpoint_of(name) is not None else normalise(name.partition(":")[0]) for name in names}


def plugins_for(names: Sequence[str], plugins: Sequence[EntryPoint]) -> set[EntryPoint] | None:
    """The plugins that decide what ``names`` mean; None if that is every plugin, as for a type ("gpu").

    The CPU's plugin is always among them: it computes what a device lacks, and drives libraries without a plugin.
    """
    named = named_plugins(names, plugins)
    if named is None:
        return None
    cpu = {plugin for plugin in plugins if normalise(plugin.distribution) == CPU.distribution}
    return named | cpu if backends_in(names) - {REFERENCE} else named


def named_plugins(names: Sequence[str], plugins: Sequence[EntryPoint]) -> set[EntryPoint] | None:
    """The plugins whose devices ``names`` are; None if that may be any plugin, as for a type ("gpu").

    The name of a backend or device is reserved for a plugin of this project, or for the plugin whose entry point has
    that name (see names).
    """
    named: set[EntryPoint] = set()
    for token in backends_in(names):
        if token == REFERENCE:
            continue
        owner = owner_of_provider(token)
        found = [
            plugin
            for plugin in plugins
            if (normalise(plugin.distribution) == owner.distribution if owner else normalise(plugin.name) == token)
        ]
        # A type means devices of every plugin, even if an entry point has its name.
        if owner is None and (not found or token in _TYPES):
            return None
        named.update(found)
    return named


_TYPES = frozenset(kind.value for kind in DeviceType)
