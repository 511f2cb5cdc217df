"""Stage 2, vet by names: refuse plugins that the user blocked or that Python would not import. Runs no plugin code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotshoe_loader.catalog import by_distribution, owner_of_provider
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.options import normalise
from hotshoe_loader.policy import Policy
from hotshoe_loader.verdict import Outcome, Rejected, Verdict

__all__ = ["facts_about", "vet_plugins"]


def facts_about(plugin: EntryPoint) -> dict[str, Any]:
    """The details that every verdict on ``plugin`` has."""
    entry = by_distribution(normalise(plugin.distribution))
    facts = {"plugin": plugin.name, "distribution": plugin.distribution}
    return facts if entry is None else {**facts, "backend": entry.name}


def vet_plugins(
    plugins: Sequence[EntryPoint], policy: Policy
) -> tuple[list[EntryPoint], dict[EntryPoint, list[Verdict]]]:
    """Return the plugins that may be probed, and a verdict for each of the others."""
    passed, verdicts = [], {}
    for plugin in plugins:
        try:
            _vet(plugin, policy)
            passed.append(plugin)
        except Rejected as rejected:
            verdicts[plugin] = [rejected.verdict(plugin.name, "plugin", plugin.origin, details=facts_about(plugin))]
    return passed, verdicts


def _vet(plugin: EntryPoint, policy: Policy) -> None:
    """Raise Rejected for the first check that fails. Each needs the entry point's metadata only."""
    entry = by_distribution(normalise(plugin.distribution))
    names = (plugin.name, plugin.distribution, entry.name if entry else "")
    policy.refuse_blocked(*names)
    policy.require_allowed(*names)
    owner = owner_of_provider(normalise(plugin.name))
    if owner is not None and entry is None:
        raise Rejected(
            Outcome.SHADOWED,
            f"{plugin.origin} calls its entry point {plugin.name!r}, which is a name of {owner.distribution}",
            f"report it to the authors of {plugin.distribution}: the entry point needs another name",
            conflict=[owner.distribution, plugin.origin],
        )
    if plugin.shadowed_by is not None:
        raise Rejected(
            Outcome.SHADOWED,
            f"this copy, in {plugin.location}, comes after {plugin.shadowed_by} in sys.path, which is used instead",
            f"remove one of the two: pip uninstall {plugin.distribution}",
            conflict=[plugin.shadowed_by, f"{plugin.origin} in {plugin.location}"],
            copy=plugin.location,
        )
    if plugin.problem is not None:
        raise Rejected(Outcome.IMPORT_ERROR, plugin.problem, plugin.pip_install("--force-reinstall"))
