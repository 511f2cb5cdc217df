"""Verdicts on candidates that are not found as plugins: the reference backend, and plugins that are not installed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from hotshoe_core.errors.install import pip_install
from hotshoe_loader.catalog import CATALOG, CatalogEntry
from hotshoe_loader.find import GROUP
from hotshoe_loader.policy import Policy
from hotshoe_loader.rank import REFERENCE
from hotshoe_loader.verdict import Outcome, Verdict

__all__ = ["not_installed", "reference"]


def reference(policy: Policy) -> Verdict:
    """The verdict on the reference backend: available, unless it is blocked by its name."""
    outcome, hint = Outcome.AVAILABLE, None
    reason = "built in: NumPy, slow; used if no plugin offers a device"
    # Its device type is CPU, but block="cpu" means the CPU plugins, not the reference backend.
    if policy.blocked(REFERENCE):
        outcome, reason = Outcome.BLOCKED, "'reference' is blocked by block= or HOTSHOE_BLOCK"
        hint = f"remove {REFERENCE!r} from block= or HOTSHOE_BLOCK to use it"
    details = {"provider": REFERENCE, "family": REFERENCE, "devices": [REFERENCE]}
    return Verdict(REFERENCE, "plugin", outcome, reason, hint, "hotshoe", details=details)


def not_installed(found: Collection[str], driven: Collection[str], installed: Mapping[str, str]) -> Iterator[Verdict]:
    """A verdict on each plugin of this project that runs on this platform, is not installed, and may be useful.

    found: distributions with an entry point. driven: backends that another plugin already drives. installed: the
    version of every distribution.
    """
    for entry in CATALOG:
        missing = entry.distribution not in found and entry.name not in driven
        if missing and (entry.suggested or (entry.relevant and entry.distribution in installed)):
            yield _absent(entry, installed.get(entry.distribution))


def _absent(entry: CatalogEntry, version: str | None) -> Verdict:
    """The verdict on a plugin without an entry point: not installed, or a ``version`` that has no entry point."""
    details = {"backend": entry.name, "distribution": entry.distribution}
    if version is not None:
        return Verdict(
            entry.distribution,
            "plugin",
            Outcome.INCOMPATIBLE_API,
            f"it is installed, but has no entry point in the group {GROUP!r}",
            pip_install(entry.distribution, "--upgrade"),
            origin=f"{entry.distribution} {version}".strip(),
            details=details,
        )
    sign = entry.sign
    reason = f"the plugin for {entry.offers} is not installed"
    if sign:
        reason += f", but {sign} shows that this machine has one"
    return Verdict(
        entry.distribution, "plugin", Outcome.NOT_INSTALLED, reason, entry.install, details={**details, "sign": sign}
    )
