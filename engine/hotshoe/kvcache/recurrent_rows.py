"""Rows: which state each row of a recurrent cache holds. Records on the host: no tensor is touched here.

A state is the sum of all tokens before it, so it cannot be shortened. A row is a *checkpoint*: the state after a
certain number of tokens. A sequence can be resumed only at a checkpoint. Sequences that begin alike share rows. A graph
writes a new row, unless no other sequence needs the old one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hotshoe.kvcache.base import Allocation
from hotshoe.kvcache.checkpoints import on_grid
from hotshoe_core.errors import CacheFullError

__all__ = ["Rows"]


@dataclass(slots=True, eq=False)
class _Row:
    number: int
    position: int = 0  # how many tokens the state contains
    members: set[int] = field(default_factory=set)  # the slots that begin with those tokens
    written: int = 0  # when it was written
    passing: bool = False  # see Allocation


class _Write(NamedTuple):
    row: _Row
    slot: int
    position: int  # after the graph
    members: set[int]  # of the row, before
    passing: bool


class Rows:
    """Rows ``first`` to ``first + n``, one state each, and one more for a graph with guessed tokens."""

    def __init__(self, n: int, first: int) -> None:
        self.n = n
        self._rows = [_Row(first + i) for i in range(n + 1)]
        self._zero = _Row(-1)  # the state of a sequence that starts; the cache replaces the number
        self._clock = itertools.count(1)
        self._writing: list[_Write] = []  # writes of a graph that is not committed yet

    def allocate(self, allocations: Sequence[Allocation]) -> tuple[list[int], list[int]]:
        """Return the rows that the graph reads, -1 for zeros, and the rows that it writes. Raises CacheFullError."""
        slots = [a.slot for a in allocations]
        if not self.fits(slots):
            raise CacheFullError(
                f"the cache has {self.n} states; {len(allocations)} sequences of the graph and the others need more",
                hint="use a larger n_sequences, or remove a sequence",
            )
        old = [self._row_at(a.slot, a.start) for a in allocations]
        reads = [row.number for row in old]
        kept = [row for a, row in zip(allocations, old, strict=True) if a.guessed]
        for a, row in zip(allocations, old, strict=True):
            target, end = self._target(a, row, kept), a.start + a.n
            self._writing.append(_Write(target, a.slot, end, target.members, a.passing and not on_grid(end)))
            target.members = set()  # its content is undefined until the graph is committed
        return reads, [write.row.number for write in self._writing]

    def commit(self) -> None:
        writing, self._writing = self._writing, []  # first: after an interrupt none of them may be rolled back
        for row, slot, position, _, passing in writing:
            row.position, row.members, row.written, row.passing = position, {slot}, next(self._clock), passing

    def rollback(self) -> None:
        for write in self._writing:
            write.row.members = write.members
        self._writing = []

    def fits(self, slots: Collection[int], keep: Collection[int] | None = None) -> bool:
        """Whether each of these slots can have its own row, and the others (of ``keep``) keep theirs."""
        others = {s for row in self._rows for s in row.members} - set(slots)
        if keep is not None:
            others &= set(keep)
        return len(slots) + len({current.number for s in others if (current := self._current(s)) is not None}) <= self.n

    def length(self, slot: int) -> int:
        row = self._current(slot)
        return 0 if row is None else row.position

    def resume_position(self, slot: int, position: int) -> int:
        return max((r.position for r in self._rows_of(slot) if r.position <= position), default=0)

    def share(self, source: int, target: int, n: int) -> None:
        for row in self._rows_of(source):
            if row.position <= n:
                row.members.add(target)

    def remove(self, slot: int, start: int) -> None:
        """Forget states that contain a token at ``start`` or later."""
        for row in self._rows_of(slot):
            if row.position > start:
                row.members.discard(slot)
        for write in self._writing:  # ``rollback`` would give the row back to a slot that has another text by now
            if write.row.position > start:
                write.members.discard(slot)

    def slots_sharing(self, slot: int, start: int) -> frozenset[int]:
        found = {s for row in self._rows_of(slot) if row.position > start for s in row.members}
        return frozenset(found - {slot})

    def found(self, slot: int, start: int, stop: int) -> list[tuple[int, int]]:
        """Return number and position of the slot's rows with more than ``start`` and at most ``stop`` tokens."""
        rows = [row for row in self._rows_of(slot) if start < row.position <= stop]
        return [(row.number, row.position) for row in sorted(rows, key=lambda row: row.position)]

    def take(self) -> int | None:
        """Return the number of a row that no slot needs now, and empty it; None if all are needed."""
        row = self._spare()
        if row is None:
            return None
        row.members = set()
        return row.number

    def put(self, number: int, slot: int, position: int) -> None:
        """Note that the row ``number`` holds a state of a slot."""
        row = next(row for row in self._rows if row.number == number)
        row.position, row.members, row.written, row.passing = position, {slot}, next(self._clock), False

    def _rows_of(self, slot: int) -> list[_Row]:
        return [row for row in self._rows if slot in row.members]

    def _current(self, slot: int) -> _Row | None:
        return max(self._rows_of(slot), key=lambda row: row.position, default=None)

    def _gap(self, row: _Row) -> int:
        """Return how many tokens must be computed again if the checkpoint is lost."""
        before = (r.position for s in row.members for r in self._rows_of(s) if r.position < row.position)
        return row.position - max(before, default=0)

    def _row_at(self, slot: int, position: int) -> _Row:
        if position == 0:
            return self._zero
        for row in self._rows_of(slot):
            if row.position == position:
                return row
        raise CacheFullError(
            f"the cache has no state of slot {slot} after {position} tokens; it can be resumed after "
            f"{self.resume_position(slot, position)}"
        )

    def _target(self, allocation: Allocation, old: _Row, kept: Collection[_Row]) -> _Row:
        """Choose the row to write: the old row for one token that no other slot needs, else another if possible.

        A graph reads all rows before it writes any, so rows that this graph reads may be chosen too, except ``kept``.
        """
        if allocation.n == 1 and old.members == {allocation.slot} and not on_grid(old.position):
            return old
        return self._spare(kept) or old  # without a spare row, no other slot is at it: fits made sure of that

    def _spare(self, kept: Collection[_Row] = ()) -> _Row | None:
        """Return a free row, or a checkpoint that may go: a passing one, or one that saves few tokens for its age.

        The last free row is for a graph that must keep the row which it reads.
        """
        taken = {write.row.number for write in self._writing}
        free = [r for r in self._rows if not r.members and r.number not in taken]
        if len(free) > (0 if kept else 1):
            return free[0]
        moved_on = {write.slot for write in self._writing}
        current = {self._current(s) for row in self._rows for s in row.members if s not in moved_on}
        checkpoints = [r for r in self._rows if r.members and r not in current and r not in kept]
        now = next(self._clock)
        return min(checkpoints, key=lambda r: (not r.passing, self._gap(r) / (now - r.written)), default=None)
