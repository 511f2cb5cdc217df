"""CachedSequence: the content of a sequence, and how much of it the cache holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hotshoe.runner.items import Items, Row

if TYPE_CHECKING:
    from hotshoe.runner.slots import Slot

__all__ = ["CachedSequence", "Nearest"]


class Nearest(NamedTuple):
    """The cached text that began most like a sequence when this was attached."""

    n: int = 0
    """Rows at the beginning that both had in common."""
    other: Row | None = None
    """The row that the cached text has where the two part; None if it ends there."""


class CachedSequence:
    """A sequence's items, and how many rows of them are in the cache.

    Only Slots changes ``n_computed``, ``slot`` and ``edited``; any code that holds the lock may append to ``items``.
    """

    def __init__(self, items: Items) -> None:
        self.items = items
        self.n_computed = 0  # rows in the cache
        self.slot: Slot | None = None
        self.nearest = Nearest()
        self.edited = False  # rows were removed since the current step was scheduled: its results do not count
        self.n_given: int | None = None  # rows before those that a model has written; None: all
        self.draft: list[int] = []  # tokens that are guessed to follow: see runner/drafting.py

    def __len__(self) -> int:
        return len(self.items)

    def rows(self, start: int, n: int) -> list[Row]:
        """Return ``n`` rows from ``start`` on, with guessed ones behind the last of its own. Fewer if it ends there."""
        rows = self.items.rows[start : start + n]
        return [*rows, *self.draft[: n - len(rows)]] if rows and len(rows) < n else rows

    @property
    def n_pending(self) -> int:
        """The number of rows that are still to be computed."""
        return len(self.items) - self.n_computed
