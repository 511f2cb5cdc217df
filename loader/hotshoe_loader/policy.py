"""Policy: the names in ``block=`` and ``allow=``. Each stage asks it about the names that it sees first."""

from __future__ import annotations

from collections.abc import Iterable

from hotshoe_core.contract.device import Device
from hotshoe_loader.options import normalise
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["Policy"]


class Policy:
    """The names that the user blocked and allowed, and which of them matched something.

    block: names of plugins and libraries that are not used. allow: if it is not empty, only the plugins named here are
    used, and only the libraries named here in the user's folders. Names are those known before a plugin's code runs.
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
