"""Which token each cell of a cache holds. Book-keeping on the host: no tensor is touched here.

A cell holds the keys and values of one token, which may belong to several sequences (a bit each): so a prefix is
shared by setting bits, and a sequence is removed by clearing them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["MAX_SEQUENCES", "Cells"]

MAX_SEQUENCES = 63  # one bit each of an int64
_FREE = -1

Array = np.ndarray[Any, Any]


class Cells:
    """``n`` cells, for layers that look ``window`` positions back, themselves included; 0 for all.

    A backend reads them in multiples of ``padding``: those that this adds stay empty.
    """

    def __init__(self, n: int, window: int, padding: int = 1) -> None:
        self.n = n
        self.window = window
        self.padding = padding
        self.n_padded = -(-n // padding) * padding
        self.positions = np.full(self.n_padded, _FREE, np.int64)
        self.members = np.zeros(self.n_padded, np.int64)

    def room(self, keep: int) -> int:
        """How many cells would be free if only the sequences of ``keep`` (a bit each) stayed."""
        return int(self.n - np.count_nonzero(self.members & ~self._unseen() & keep))

    def fits(self, lengths: Sequence[int], pending: int, keep: int, n_batch: int) -> bool:
        """Whether sequences of these lengths find room, ``pending`` tokens of which are not here yet.

        The sequences of ``keep`` (a bit each) stay. A window holds the ends of long ones only, and a batch on its way.
        """
        if self.window and sum(min(n, self.window) for n in lengths) + n_batch <= self.n:
            return True
        return pending <= self.room(keep)

    def place(self, positions: Array, sequences: Array) -> Array:
        """Take a cell for each token, (n,) I32. There must be room: older tokens make it where no window shows them."""
        if np.count_nonzero(self.members[: self.n] == 0) < len(positions):
            self.members &= ~self._unseen()
            self._tidy()
        cells = np.flatnonzero(self.members[: self.n] == 0)[: len(positions)]
        self.positions[cells] = positions
        self.members[cells] = np.int64(1) << sequences.astype(np.int64)
        return cells.astype(np.int32)

    def mask(self, positions: Array, sequences: Array) -> Array:
        """Which of the first ``n_read`` cells each token may look at: (tokens, n_read) bool."""
        n = self.n_read
        mine = (self.members[:n] >> sequences[:, None]) & 1
        back = positions[:, None] - self.positions[:n]
        visible: Array = (mine == 1) & (back >= 0)
        if self.window:
            visible &= back < self.window
        return visible

    @property
    def n_read(self) -> int:
        """How many cells a graph must read: up to the last in use, padded."""
        used = np.flatnonzero(self.members)
        n = int(used[-1]) + 1 if len(used) else 1
        return -(-n // self.padding) * self.padding

    def of(self, sequence: int) -> Array:
        """Where the tokens of a sequence are: (n,) bool."""
        found: Array = (self.members >> sequence) & 1 == 1
        return found

    def share(self, source: int, target: int, n: int) -> None:
        self.members[self.of(source) & (self.positions < n)] |= np.int64(1) << np.int64(target)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether a token at ``position`` would still find all that it may look at."""
        reach = min(self.window - 1, position) if self.window else position
        there = self.positions[self.of(sequence)]
        return int(np.count_nonzero((there >= position - reach) & (there < position))) == reach

    def remove(self, sequence: int, start: int, stop: int | None) -> None:
        gone = self.of(sequence) & (self.positions >= start)
        if stop is not None:
            gone &= self.positions < stop
        self.members[gone] &= ~(np.int64(1) << np.int64(sequence))
        self._tidy()

    def _unseen(self) -> Array:
        """For each cell, the sequences (a bit each) whose next token will not look at it."""
        unseen = np.zeros(self.n_padded if self.window else 1, np.int64)
        present = int(np.bitwise_or.reduce(self.members)) if self.window else 0
        for s in range(present.bit_length()):
            if present >> s & 1:
                mine = self.of(s)
                old = mine & (self.positions <= self.positions[mine].max() + 1 - self.window)
                unseen[old] |= np.int64(1) << np.int64(s)
        return unseen

    def _tidy(self) -> None:
        self.positions[self.members == 0] = _FREE
