"""CachedSequence and Slot: the content of a sequence, and the place in the cache that holds its rows."""

from __future__ import annotations

import weakref
from typing import NamedTuple

from hotshoe.runner.items import Items, Row

__all__ = ["CachedSequence", "Nearest", "Slot"]


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

    def has_written(self, position: int) -> bool:
        """Whether the model has written the row at this position, or will. Otherwise a caller gave it."""
        return self.n_given is not None and position >= self.n_given

    @property
    def n_pending(self) -> int:
        """The number of rows that are still to be computed."""
        return len(self.items) - self.n_computed


class Slot:
    """One of the cache's places for a sequence, and the rows that it holds at positions 0, 1, 2, …"""

    def __init__(self, number: int) -> None:
        self.number = number  # ``slot`` in the methods of the cache
        self.rows: list[Row] = []
        self.pending: list[Row] = []  # rows that the current graph computes
        self.used = 0  # when a graph last computed rows of it
        self.n_held = 0  # rows whose keys and values are there; more than ``rows`` after wrong guesses, for a moment
        self.shifted_from: int | None = None  # keys from here on were rotated, not computed: no exact prefix for others
        self.busy = False  # a graph, a shift or a return from the store is changing it
        self.coming: list[bytes] = []  # the blocks of the store that follow these rows, and are still to be restored
        self.n_with_coming = 0  # rows when all of them are restored
        self._owner: weakref.ref[CachedSequence] | None = None

    @property
    def owner(self) -> CachedSequence | None:
        return None if self._owner is None else self._owner()

    @owner.setter
    def owner(self, sequence: CachedSequence | None) -> None:
        self._owner = None if sequence is None else weakref.ref(sequence)
