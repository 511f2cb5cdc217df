"""Which state each row of a recurrent cache holds. Book-keeping on the host: no tensor is touched here.

A state cannot be cut back: it is the sum of all tokens before it. So a row is a *checkpoint*, the state after exactly
so many tokens, and a sequence may be resumed only where one was kept. Sequences that begin alike share rows; whoever
goes on writes another one, unless nobody else needs the old one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hotshoe.kvcache.base import Allocation
from hotshoe_core.errors import CacheFullError

__all__ = ["Rows"]


@dataclass(slots=True, eq=False)
class _Row:
    number: int
    position: int = 0  # tokens that the state has seen
    members: set[int] = field(default_factory=set)  # sequences that begin with those tokens
    written: int = 0  # when: the oldest checkpoints go first


class _Write(NamedTuple):
    row: _Row
    sequence: int
    position: int  # after the step


class Rows:
    """Rows ``first`` to ``first + n``: at most ``n`` states at once."""

    def __init__(self, n: int, first: int) -> None:
        self.n = n
        self._rows = [_Row(first + i) for i in range(n)]
        self._zero = _Row(-1)  # what a sequence starts from; its number is the cache's business
        self._clock = itertools.count(1)
        self._writing: list[_Write] = []  # of a step that is not committed yet

    def allocate(self, step: Sequence[Allocation]) -> tuple[list[int], list[int]]:
        """For each sequence of a step the row to read, -1 for zeros, and the row to write."""
        sequences = [p.sequence for p in step]
        if not self.fits(sequences):
            raise CacheFullError(
                f"the cache has {self.n} states; {len(step)} sequences and those that stay need more",
                hint="load the model with a larger n_sequences, or remove a sequence",
            )
        old = [self._at(p.sequence, p.start) for p in step]
        reads = [row.number for row in old]
        for p, row in zip(step, old, strict=True):
            target = self._target(p, row)
            self._writing.append(_Write(target, p.sequence, p.start + p.n))
            target.members = set()  # until the step is committed, it holds nothing that counts
        return reads, [write.row.number for write in self._writing]

    def commit(self) -> None:
        for row, sequence, position in self._writing:
            row.position, row.members, row.written = position, {sequence}, next(self._clock)
        self._writing = []

    def rollback(self) -> None:
        # the rows were emptied when they were placed: what the step has written of them is not known
        self._writing = []

    def fits(self, step: Collection[int], keep: Collection[int] | None = None) -> bool:
        """Whether each of these sequences can have a row of its own, and the others (of ``keep``) what they are at."""
        others = {s for row in self._rows for s in row.members} - set(step)
        if keep is not None:
            others &= set(keep)
        return len(step) + len({current.number for s in others if (current := self._current(s)) is not None}) <= self.n

    def length(self, sequence: int) -> int:
        row = self._current(sequence)
        return 0 if row is None else row.position

    def resumable(self, sequence: int, position: int) -> int:
        return max((r.position for r in self._of(sequence) if r.position <= position), default=0)

    def share(self, source: int, target: int, n: int) -> None:
        for row in self._of(source):
            if row.position <= n:
                row.members.add(target)

    def remove(self, sequence: int, start: int) -> None:
        """Forget states that have seen a token at ``start`` or later."""
        for row in self._of(sequence):
            if row.position > start:
                row.members.discard(sequence)

    def sharing(self, sequence: int, start: int) -> frozenset[int]:
        found = {s for row in self._of(sequence) if row.position > start for s in row.members}
        return frozenset(found - {sequence})

    def _of(self, sequence: int) -> list[_Row]:
        return [row for row in self._rows if sequence in row.members]

    def _current(self, sequence: int) -> _Row | None:
        return max(self._of(sequence), key=lambda row: row.position, default=None)

    def _at(self, sequence: int, position: int) -> _Row:
        if position == 0:
            return self._zero
        for row in self._of(sequence):
            if row.position == position:
                return row
        raise CacheFullError(
            f"no state of sequence {sequence} after {position} tokens is kept; it can be resumed after "
            f"{self.resumable(sequence, position)}"
        )

    def _target(self, p: Allocation, old: _Row) -> _Row:
        """One token overwrites its own row; more, or a row that others need, go to another where there is one.

        All rows are read before any is written, so even the rows that this step reads may be taken.
        """
        if p.n == 1 and old.members == {p.sequence}:
            return old
        taken = {write.row.number for write in self._writing}
        free = next((r for r in self._rows if not r.members and r.number not in taken), None)
        if free is not None:
            return free
        moved_on = {write.sequence for write in self._writing}
        at = {self._current(s) for row in self._rows for s in row.members if s not in moved_on}
        checkpoints = [r for r in self._rows if r.members and r not in at]
        if checkpoints:
            return min(checkpoints, key=lambda r: r.written)
        return old  # nobody else is at it, or there would be a row: see fits
