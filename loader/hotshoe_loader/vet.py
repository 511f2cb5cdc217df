"""Stage 2, vet, by names: what the user wants used, and what Python would import. A check raises Rejected."""

from __future__ import annotations

from collections.abc import Iterable

from hotshoe_core.contract.device import Device
from hotshoe_loader.catalog import by_distribution, owner_of_provider
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.options import normalise
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["Policy", "vet_plugin"]


class Policy:
    """The names a user blocked and allowed, and which of them met something: one that meets nothing is worth a word.

    block: what is not used. allow: if it names anything, no other plugin is used, and no library in the user's
    folders; it names what is known before a plugin's code runs.
    """

    def __init__(self, block: Iterable[str] = (), allow: Iterable[str] = ()) -> None:
        self._block = frozenset(normalise(name) for name in block)
        self._allow = frozenset(normalise(name) for name in allow)
        self.met: set[str] = set()

    def hit(self, *names: str) -> str | None:
        """The first of ``names`` that is blocked."""
        for name in names:
            if name and normalise(name) in self._block:
                self.met.add(normalise(name))
                return name
        return None

    def refuse(self, *names: str) -> None:
        """Raises Rejected if one of ``names`` is blocked."""
        name = self.hit(*names)
        if name is not None:
            raise Rejected(
                Outcome.BLOCKED,
                f"{name!r} is blocked by block= or HOTSHOE_BLOCK",
                f"take {name!r} out of block= or HOTSHOE_BLOCK to use it",
            )

    def admit(self, *names: str) -> None:
        """Raises Rejected if there is an allow list and none of ``names`` is on it."""
        allowed = {normalise(name) for name in names if name} & self._allow
        self.met |= allowed
        if self._allow and not allowed:
            raise Rejected(
                Outcome.BLOCKED,
                f"allow= or HOTSHOE_ALLOW names {', '.join(sorted(self._allow))}, and not this",
                f"add {names[0]!r} to it to use this one",
            )

    def device(self, device: Device) -> bool:
        """Whether one device is blocked, by its name, its library's ("vulkan" of "vulkan:0") or its type."""
        return self.hit(device.name, device.name.partition(":")[0], device.type.value) is not None

    @property
    def unmet(self) -> list[tuple[str, str]]:
        """Option and name of what met nothing."""
        named = [("block", name) for name in self._block] + [("allow", name) for name in self._allow]
        return sorted((option, name) for option, name in named if name not in self.met)


def vet_plugin(plugin: PluginCandidate, policy: Policy) -> None:
    """Checks that need the entry point's metadata only."""
    published = by_distribution(normalise(plugin.distribution))
    names = (plugin.name, plugin.distribution, published.name if published else "")
    policy.refuse(*names)
    policy.admit(*names)
    own = owner_of_provider(normalise(plugin.name))
    if own is not None and published is None:
        raise Rejected(
            Outcome.SHADOWED,
            f"{plugin.origin} calls its entry point {plugin.name!r}, which is a name of {own.distribution}",
            f"report it to the authors of {plugin.distribution}: the entry point needs another name",
            conflict=[own.distribution, plugin.origin],
        )
    if plugin.shadowed_by is not None:
        raise Rejected(
            Outcome.SHADOWED,
            f"this copy, in {plugin.location}, comes after {plugin.shadowed_by} in sys.path, which is the one imported",
            f"remove one of the two: pip uninstall {plugin.distribution}",
        )
    if plugin.problem is not None:
        raise Rejected(Outcome.IMPORT_ERROR, plugin.problem, f"pip install --force-reinstall {plugin.distribution}")
