"""Stage 2, vet by names: refuse plugins that the user blocked or that Python would not import. Runs no plugin code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hotshoe_core.contract.device import Device
from hotshoe_loader.catalog import by_distribution, owner_of_provider
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.options import normalise
from hotshoe_loader.verdict import Outcome, Rejected, Verdict

__all__ = ["Policy", "facts_about", "vet_plugins"]


class Policy:
    """The names that the user blocked and allowed, and which of them matched something.

    block: names of what is not used. allow: if it is not empty, no other plugin is used, and no other library in the
    user's folders; the names are those known before a plugin's code runs.
    """

    def __init__(self, block: Iterable[str] = (), allow: Iterable[str] = ()) -> None:
        self._block = frozenset(normalise(name) for name in block)
        self._allow = frozenset(normalise(name) for name in allow)
        self.matched: set[str] = set()

    def blocked(self, *names: str) -> str | None:
        """The first of ``names`` that is blocked, or None."""
        for name in names:
            if name and normalise(name) in self._block:
                self.matched.add(normalise(name))
                return name
        return None

    def refuse_blocked(self, *names: str) -> None:
        """Raise Rejected if one of ``names`` is blocked."""
        name = self.blocked(*names)
        if name is not None:
            raise Rejected(
                Outcome.BLOCKED,
                f"{name!r} is blocked by block= or HOTSHOE_BLOCK",
                f"remove {name!r} from block= or HOTSHOE_BLOCK to use it",
            )

    def require_allowed(self, *names: str) -> None:
        """Raise Rejected if there is an allow list and none of ``names`` is on it."""
        allowed = {normalise(name) for name in names if name} & self._allow
        self.matched |= allowed
        if self._allow and not allowed:
            raise Rejected(
                Outcome.BLOCKED,
                f"it is not in allow= or HOTSHOE_ALLOW, which lists {', '.join(sorted(self._allow))}",
                f"add {names[0]!r} to allow= or HOTSHOE_ALLOW to use it",
            )

    def blocks_device(self, device: Device) -> bool:
        """Whether a device is blocked by its name, its backend's ("vulkan" of "vulkan:0") or its type."""
        return self.blocked(device.name, device.name.partition(":")[0], device.type.value) is not None

    @property
    def unmatched(self) -> list[tuple[str, str]]:
        """Option and name of each entry that matched nothing."""
        named = [("block", name) for name in self._block] + [("allow", name) for name in self._allow]
        return sorted((option, name) for option, name in named if name not in self.matched)


def facts_about(plugin: PluginCandidate) -> dict[str, Any]:
    """The details that every verdict on ``plugin`` has."""
    published = by_distribution(normalise(plugin.distribution))
    facts = {"plugin": plugin.name, "distribution": plugin.distribution}
    return facts if published is None else {**facts, "backend": published.name}


def vet_plugins(
    plugins: Sequence[PluginCandidate], policy: Policy
) -> tuple[list[PluginCandidate], dict[PluginCandidate, list[Verdict]]]:
    """Return the plugins that may be probed, and a verdict for each of the others."""
    passed, verdicts = [], {}
    for plugin in plugins:
        try:
            _vet(plugin, policy)
            passed.append(plugin)
        except Rejected as rejected:
            verdicts[plugin] = [rejected.verdict(plugin.name, "plugin", plugin.origin, details=facts_about(plugin))]
    return passed, verdicts


def _vet(plugin: PluginCandidate, policy: Policy) -> None:
    """Raise Rejected for the first check that fails. Each needs the entry point's metadata only."""
    published = by_distribution(normalise(plugin.distribution))
    names = (plugin.name, plugin.distribution, published.name if published else "")
    policy.refuse_blocked(*names)
    policy.require_allowed(*names)
    owner = owner_of_provider(normalise(plugin.name))
    if owner is not None and published is None:
        raise Rejected(
            Outcome.SHADOWED,
            f"{plugin.origin} calls its entry point {plugin.name!r}, which is a name of {owner.distribution}",
            f"report it to the authors of {plugin.distribution}: the entry point needs another name",
            conflict=[owner.distribution, plugin.origin],
        )
    if plugin.shadowed_by is not None:
        raise Rejected(
            Outcome.SHADOWED,
            f"this copy, in {plugin.location}, comes after {plugin.shadowed_by} in sys.path; Python imports that one",
            f"remove one of the two: pip uninstall {plugin.distribution}",
        )
    if plugin.problem is not None:
        raise Rejected(Outcome.IMPORT_ERROR, plugin.problem, f"pip install --force-reinstall {plugin.distribution}")
