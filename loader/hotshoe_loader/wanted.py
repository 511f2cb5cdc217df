"""Which plugins a device's name asks for, by metadata only: a caller that names a device waits for no other plugin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hotshoe_loader.catalog import owner_of_provider
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.options import normalise
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.servers import endpoint_of

__all__ = ["backends_in", "names_in", "plugins_for"]


def names_in(device: str | Iterable[str]) -> list[str]:
    """The names in ``device=``: a list of names, or one text with commas. Anything else is left to the selection."""
    given = [device] if isinstance(device, str) else list(device)
    return [name.strip() for token in given if isinstance(token, str) for name in token.split(",")]


def backends_in(names: Iterable[str]) -> set[str]:
    """The backends or plugins in names of devices: "cuda" in "cuda:0", "rpc" in "rpc://host:port"."""
    return {"rpc" if endpoint_of(name) is not None else normalise(name.partition(":")[0]) for name in names}


def plugins_for(names: Sequence[str], plugins: Sequence[EntryPoint]) -> set[EntryPoint] | None:
    """The plugins that decide what ``names`` mean; None if that is every plugin, as for a type ("gpu").

    The name of a backend or device is reserved for a plugin of this project, or for the plugin whose entry point has
    that name (see names). The CPU's plugin is always among them: it computes what a device lacks, and drives
    libraries without a plugin.
    """
    wanted: set[EntryPoint] = set()
    for token in backends_in(names):
        if token == REFERENCE:
            continue
        owner = owner_of_provider(token)
        found = [
            plugin
            for plugin in plugins
            if (normalise(plugin.distribution) == owner.distribution if owner else normalise(plugin.name) == token)
        ]
        if owner is None and not found:
            return None
        wanted.update(found)
        wanted.update(plugin for plugin in plugins if normalise(plugin.distribution) == _CPU)
    return wanted


_CPU = "hotshoe-ggml-cpu"
