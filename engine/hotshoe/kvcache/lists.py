"""Lists of cells: what ``cached_attention`` reads. Records on the host: no tensor is touched here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache.buckets import round_up
from hotshoe.kvcache.cells import parts_of_rows

if TYPE_CHECKING:
    from hotshoe.kvcache.cells import Cells

__all__ = ["CellLists"]

_ALIGNED = 512
"""Lists begin at positions that are multiples of this, as ``CacheConfig.reads_lists`` says."""

Array = np.ndarray[Any, Any]


@dataclass(slots=True)
class _List:
    """The cells of a slot in the order of their positions. They are kept, as most graphs add a token to each text."""

    cells: Array
    """The first ``n`` are in use. Those before ``skipped`` fill the list up; those before a window may be others'."""

    n: int
    skipped: int
    start: int
    """The position of index 0."""

    end: int
    """The position after the last one."""

    positions: Array | None = None
    """Of the cells from ``skipped`` on, if they do not follow each other; each graph then makes the list again."""

    def index(self, position: int) -> int:
        """Return the index of the first cell at this position or later."""
        if self.positions is None:
            return min(max(position - self.start, self.skipped), self.n)
        return int(self.indices(np.asarray(position)))

    def indices(self, positions: Array) -> Array:
        """Return ``index`` of each position."""
        if self.positions is None:
            found: Array = np.minimum(np.maximum(positions - self.start, self.skipped), self.n)
        else:
            found = self.skipped + np.searchsorted(self.positions, positions)
        return found

    def append(self, cells: Array) -> None:
        n = self.n + len(cells)
        if n > len(self.cells):
            self.cells = np.concatenate((self.cells[: self.n], np.zeros(n, np.int32)))
        self.cells[self.n : n] = cells
        self.n = n
        self.end += len(cells)


class CellLists:
    """The lists of the texts in one graph, one behind the other, for layers of one reach."""

    def __init__(self, cells: Cells, padding: int, per_octave: int, n_sequences: int) -> None:
        self._cells = cells
        self._lists: dict[int, _List] = cells.keep()
        self._n_sequences = n_sequences
        self._padding = padding
        self._per_octave = per_octave
        self.size = self._rounded(1)
        """The length of the lists that the last graph reads, rounded up."""

    @property
    def max_size(self) -> int:
        """``size`` when all cells are in use and no text shares any with another."""
        before = _ALIGNED * self._n_sequences if self._cells.reach.most else 0  # a window begins anywhere
        return self._rounded(self._cells.n + before + 1)

    def _rounded(self, n: int) -> int:
        return round_up(-(-n // self._padding), self._per_octave) * self._padding

    def write(
        self, cells: Array, positions: Array, slots: Array, spans: tuple[Array, Array] | None = None
    ) -> tuple[Array, Array]:
        """Return the lists and ranges of the rows of a graph, as ``cached_attention`` takes them.

        cells: (n_rows,), as ``allocate`` returned them for these positions and slots. spans: as in ``Cells.mask``. The
        lists are (size,) I32, the ranges (n_rows, 3) I32.
        """
        ranges = np.empty((len(cells), 3), np.int32)
        lists, at = [], 0
        for slot, i, j in parts_of_rows(slots):
            kept = self._list_of(slot, cells[i:j], positions[i:j])
            start: Any
            stop: Any
            if j - i == 1 and spans is None:  # as while texts grow
                position = int(positions[i])
                start = first = kept.index(self._cells.reach.first_seen(position))
                stop = last = kept.index(position + 1)
            else:
                start, stop = self._seen(kept, positions[i:j], spans and (spans[0][i:j], spans[1][i:j]))
                first, last = int(start.min()), int(stop.max())
            skipped = first - first % _ALIGNED
            lists.append(kept.cells[skipped:last])
            ranges[i:j, 0] = at
            ranges[i:j, 1] = start + (at - skipped)
            ranges[i:j, 2] = stop + (at - skipped)
            at += last - skipped
        ranges[len(positions) :] = at, at, at + 1  # padding reads any cell: a softmax of nothing is NaN
        self.size = self._rounded(at + 1)
        written = np.zeros(self.size, np.int32)
        if lists:
            np.concatenate(lists, out=written[:at])
        return written, ranges

    def _seen(self, kept: _List, positions: Array, spans: tuple[Array, Array] | None) -> tuple[Array, Array]:
        """Return the first index that each row attends to, and the one after the last."""
        reach = self._cells.reach
        first, stop = np.zeros_like(positions), positions + 1
        if reach.window:
            first = np.maximum(stop - reach.window, 0)
        elif reach.chunk:
            first = positions - positions % reach.chunk
        if spans is not None and reach.spans != "causal":
            stop = np.maximum(stop, spans[1] + 1)
            if reach.spans == "whole":
                first = np.minimum(first, spans[0])
        return kept.indices(first), kept.indices(stop)

    def _list_of(self, slot: int, cells: Array, positions: Array) -> _List:
        """Return the list of a slot, with its new cells at these positions."""
        kept = self._lists.get(slot)
        first, n = int(positions[0]), len(positions)
        # a list goes on only if its positions follow each other, and the new ones follow them
        if kept is None or kept.positions is not None or kept.end != first or int(positions[-1]) != first + n - 1:
            kept = self._lists[slot] = self._new_list(slot)
        else:
            kept.append(cells)
        return kept

    def _new_list(self, slot: int) -> _List:
        cells = np.flatnonzero(self._cells.held_by(slot)).astype(np.int32)
        positions = self._cells.positions[cells]
        order = np.argsort(positions)
        cells, positions = cells[order], positions[order]
        first, end, n = int(positions[0]), int(positions[-1]) + 1, len(cells)
        skipped = first % _ALIGNED
        padded = np.concatenate((np.zeros(skipped, np.int32), cells))
        return _List(padded, n + skipped, skipped, first - skipped, end, positions if end - first > n else None)
