"""Cells: which token each cell of a cache holds. Records on the host: no tensor is touched here.

A cell holds the keys and values of one token, which may belong to the sequences of several slots. So a prefix is shared
by setting bits, and a sequence is removed by clearing them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from hotshoe.kvcache.base import Allocation
from hotshoe.kvcache.buckets import BLOCKS_PER_OCTAVE, round_up
from hotshoe.kvcache.spec import SpanReach
from hotshoe_core.errors import CacheFullError

__all__ = ["ALL_SLOTS", "Cells", "Reach", "SlotBits", "bits_of", "full", "parts_of_rows", "slots_of"]

_FREE = -1
_BITS = 64  # of a word of ``Cells.members``
_SEARCHED_AT_ONCE = 4096  # cells, from the end of those in use
_CELLS_OF_TEXT = 128  # that a text takes at once: attention passes over them where another text is computed
_MOST_KEPT = 2048  # tokens of a mask that is kept for later prompts: 8 MB in F16

Array = np.ndarray[Any, Any]
SlotBits = int
"""A set of slots, bit s for slot s."""
ALL_SLOTS: SlotBits = -1


def bits_of(slots: Collection[int] | None) -> SlotBits:
    """Return a set of slots as bits; None: all slots."""
    if slots is None:
        return ALL_SLOTS
    bits = 0
    for s in slots:
        bits |= 1 << s
    return bits


def slots_of(bits: SlotBits) -> frozenset[int]:
    """Return the slots whose bits are set."""
    return frozenset(s for s in range(bits.bit_length()) if bits >> s & 1)


def _bit(slots: Any) -> Any:
    """Return the bit of a slot, or of each slot, in its word."""
    return np.uint64(1) << np.asarray(slots % _BITS, np.uint64)


def _later(n: int, dtype: Any) -> Array:
    """Return the mask of ``n`` new tokens among themselves: each attends to itself and those before it. (n, n)."""
    return _kept_later(n, dtype) if n <= _MOST_KEPT else np.triu(np.full((n, n), -np.inf, dtype), 1)


@lru_cache(maxsize=2)
def _kept_later(n: int, dtype: Any) -> Array:
    mask: Array = np.triu(np.full((n, n), -np.inf, dtype), 1)
    mask.flags.writeable = False
    return mask


def full(room: int, n: int) -> CacheFullError:
    """Make the error for a cache that has room for fewer than ``n`` more tokens."""
    return CacheFullError(
        f"the cache has room for {room} more tokens; {n} are to be added",
        hint="use a larger n_ctx or n_sequences, or remove a sequence",
    )


def parts_of_rows(slots: Array) -> list[tuple[int, int, int]]:
    """Divide rows where the slot changes: the slot, the first row, and the row after the last one."""
    if not len(slots):
        return []
    inner = (np.flatnonzero(slots[1:] != slots[:-1]) + 1).tolist() if len(slots) > 1 else []
    return [(int(slots[i]), i, j) for i, j in pairwise((0, *inner, len(slots)))]


def _find_free(used: Array, first: int, n: int) -> Array:
    """Return ``n`` cells that are not used, or all if there are fewer.

    Those from ``first`` to the end of its block come first, then free blocks, then any others.
    """
    found: list[Array] = []
    if first % _CELLS_OF_TEXT:
        rest = used[first : min(first + n, first + -first % _CELLS_OF_TEXT)]
        found.append(np.arange(first, first + (int(rest.argmax()) if rest.any() else len(rest))))
        n -= len(found[0])
    if n:
        whole = len(used) // _CELLS_OF_TEXT
        blocks = np.flatnonzero(~used[: whole * _CELLS_OF_TEXT].reshape(whole, _CELLS_OF_TEXT).any(axis=1))
        blocks = blocks[: -(-n // _CELLS_OF_TEXT)]
        found.append((blocks[:, None] * _CELLS_OF_TEXT + np.arange(_CELLS_OF_TEXT)).reshape(-1)[:n])
        n -= len(found[-1])
    if n:
        left = used.copy()
        left[np.concatenate(found)] = True
        found.append(np.flatnonzero(~left)[:n])
    return np.concatenate(found)


@dataclass(slots=True)
class _Row:
    """The mask of a slot's next token: 0 for the cells that it attends to, -inf for the others."""

    mask: Array
    end: int
    """The position after the last token of the slot."""


class Reach(NamedTuple):
    """How far a layer attends back: a window (the token itself included), a chunk, or everything if both are 0."""

    window: int = 0
    chunk: int = 0
    both_sides: bool = False
    """Half of the window is before the token, half of it behind: in encoders, which keep no cells."""

    spans: SpanReach = "whole"
    """As in AttentionSpec."""

    def __str__(self) -> str:
        if self.window:
            return f"{'both_sides' if self.both_sides else 'window'}{self.window}"
        return f"chunk{self.chunk}" if self.chunk else "all"

    @property
    def most(self) -> int:
        """The most tokens that a token attends to; 0 for all."""
        return self.window or self.chunk

    def first_seen(self, position: int) -> int:
        """Return the first position that a token at ``position`` attends to."""
        if self.window:
            return max(0, position + 1 - self.window)
        return position - position % self.chunk if self.chunk else 0


class Cells:
    """``n`` cells for layers of one reach, and after them ``n_scratch`` cells that padding writes to.

    Graphs read a multiple of ``padding`` cells, of which there are ``per_octave`` from a power of two to the next one.
    """

    def __init__(
        self, n: int, reach: Reach, padding: int = 1, n_scratch: int = 0, per_octave: int = BLOCKS_PER_OCTAVE
    ) -> None:
        self.n = n
        self.reach = reach
        self.padding = padding
        self._per_octave = per_octave
        self.n_rows = max(-(-n // padding) * padding, n + n_scratch)
        self._allocated: Array | None = None  # the cells of a graph that is not committed yet
        self._next: dict[int, int] = {}  # by slot: the cell after its newest one
        self._end = 0  # all cells from it on are free
        self._kept: list[dict[int, Any]] = []
        self._rows: dict[int, _Row] = self.keep()
        self._scratch = np.arange(n, self.n_rows, dtype=np.int32)

    def keep(self) -> dict[int, Any]:
        """Return a dict for what is derived of each slot: an entry is removed when cells of its slot change."""
        self._kept.append({})
        return self._kept[-1]

    @cached_property
    def positions(self) -> Array:
        """The position of each cell's token, (n_rows,) I32. Made when the first text comes: a plan has no texts."""
        return np.full(self.n_rows, _FREE, np.int32)

    @cached_property
    def members(self) -> Array:
        """The slots whose sequences each cell belongs to, as bits, (words, n_rows) U64. Words are added when needed."""
        return np.zeros((1, self.n_rows), np.uint64)

    def _word(self, slot: int) -> Array:
        """Return the word of ``members`` that has this slot's bit, (n_rows,)."""
        missing = slot // _BITS + 1 - len(self.members)
        if missing > 0:
            self.members = np.pad(self.members, ((0, missing), (0, 0)))
        word: Array = self.members[slot // _BITS]
        return word

    def _words_of(self, slots: SlotBits) -> Array:
        """Return a set of slots as words, (words, 1)."""
        return np.array([[slots >> _BITS * i & (1 << _BITS) - 1] for i in range(len(self.members))], np.uint64)

    @property
    def used(self) -> Array:
        """Which cells hold a token of any slot: (n_rows,) bool."""
        found: Array = np.bitwise_or.reduce(self.members, axis=0) != 0
        return found

    def room(self, keep: SlotBits = ALL_SLOTS) -> int:
        """Return how many cells would be free if only the rows of ``keep`` stayed."""
        used = self.members[:, : self._end] & self._words_of(keep)
        if self.reach.most:
            used &= ~self._unseen()[:, : self._end]
        return int(self.n - np.count_nonzero(used.any(axis=0)))

    def fits(self, allocations: Sequence[Allocation], keep: SlotBits, min_free: int, n_ubatch: int) -> bool:
        """Whether there is room for these tokens. Layers of a short reach keep only the ends of texts, and a graph."""
        most = self.reach.most
        if most:
            alone = keep & ~bits_of([a.slot for a in allocations]) == 0
            if alone and sum(min(a.start + a.n, most) for a in allocations) + n_ubatch <= self.n:
                return True
        n = sum(a.n for a in allocations) + min_free
        return n <= self.n - self._end or n <= self.room(keep)  # the first is known without looking at the cells

    def allocate(self, positions: Array, slots: Array, n_rows: int) -> Array:
        """Return a cell for each row, (n_rows,) I32; may free cells that no token attends to. Raises CacheFullError."""
        n = len(positions)
        cells = self._free(slots)
        if len(cells) < n:
            self.members &= ~self._unseen()
            self._tidy()
            cells = self._free(slots)
        if len(cells) < n:
            raise full(len(cells), n)
        self._allocated = cells
        for slot, start, end in parts_of_rows(slots):
            rows: Any = start if end - start == 1 else slice(start, end)  # one index is faster than an array of it
            taken = cells[rows]
            self.positions[taken] = positions[rows]
            self._word(slot)[taken] = _bit(slot)
            self._end = max(self._end, int(taken.max()) + 1)
            self._next[slot] = int(cells[end - 1]) + 1
        return cells if n == n_rows else np.concatenate((cells, self._scratch[: n_rows - n]))

    def _free(self, slots: Array) -> Array:
        """Return a free cell for each row, or fewer if there are not enough, (n,) I32.

        A text goes on behind its newest cell, then in blocks of _CELLS_OF_TEXT that are free, then anywhere. So its
        cells lie together, however many texts grow at once.
        """
        cells = np.empty(len(slots), np.int32)
        used: Array | None = None
        taken: set[int] = set()
        for slot, start, end in parts_of_rows(slots):
            first = self._next_cell(slot)
            if end - start == 1 and used is None and self._is_next_free(first) and first not in taken:
                cells[start] = first  # as while texts grow
                taken.add(first)
                continue
            if used is None:
                used = np.bitwise_or.reduce(self.members[:, : self.n], axis=0) != 0
                used[list(taken)] = True
            found = _find_free(used, first, end - start)
            used[found] = True
            cells[start : start + len(found)] = found
            if len(found) < end - start:
                return cells[: start + len(found)]
        return cells

    def _is_next_free(self, cell: int) -> bool:
        return cell % _CELLS_OF_TEXT > 0 and cell < self.n and not self._is_used(cell)

    def _next_cell(self, slot: int) -> int:
        """Return the cell after the newest one of a slot; 0 if it has none."""
        if slot not in self._next:
            held = self.held_by(slot)
            newest = int(np.where(held, self.positions, _FREE).argmax())
            self._next[slot] = newest + 1 if held[newest] else 0
        return self._next[slot]

    def commit(self) -> None:
        self._allocated = None

    def rollback(self) -> None:
        if self._allocated is not None:
            self.members[:, self._allocated] = 0
            self._tidy()
            self._allocated = None
            for kept in self._kept:
                kept.clear()
            self._next.clear()

    def write_mask(self, mask: Array, positions: Array, slots: Array, spans: tuple[Array, Array] | None = None) -> None:
        """Write the mask of the cells just allocated: 0 where ``self.mask`` is True, else -inf. mask: (tokens, n_read).

        If layers attend to all earlier tokens, and the rows of each slot continue its sequence, they see the cells that
        the slot had, which are kept as a row, and of the new cells those up to their own.
        """
        spans = None if self.reach.spans == "causal" else spans
        if self.reach.most or spans is not None or not self._continue_rows(mask, positions, slots):
            self._rows.clear()
            mask[:] = -np.inf
            mask[self.mask(positions, slots, spans)] = 0

    def _continue_rows(self, mask: Array, positions: Array, slots: Array) -> bool:
        cells = self._allocated
        assert cells is not None  # called after allocate()
        if not len(slots):
            return True
        parts = parts_of_rows(slots)
        if len({slot for slot, *_ in parts}) < len(parts):
            return False
        for slot, i, j in parts:
            row = self._row(slot, cells[i:j], mask.dtype)
            first = int(positions[i])
            if first < row.end:
                return False
            part, new = mask[i:j], cells[i:j]
            part[:] = row.mask[: mask.shape[1]]
            if j - i == 1:
                part[0, new[0]] = 0
            elif new[-1] - new[0] == j - i - 1:  # they follow each other
                part[:, new[0] : new[-1] + 1] = _later(j - i, mask.dtype)
            else:
                part[:, new] = _later(j - i, mask.dtype)
            row.mask[new] = 0
            row.end = int(positions[j - 1]) + 1
        return True

    def _row(self, slot: int, new: Array, dtype: Any) -> _Row:
        """Return the kept row of a slot, or make it from all cells of the slot except ``new``."""
        if slot not in self._rows:
            held = self.held_by(slot)
            held[new] = False
            mask = np.full(self.n_rows, -np.inf, dtype)
            mask[held] = 0
            self._rows[slot] = _Row(mask, int(self.positions[held].max(initial=-1)) + 1)
        return self._rows[slot]

    def mask(self, positions: Array, slots: Array, spans: tuple[Array, Array] | None = None) -> Array:
        """Return which of the first ``n_read`` cells each token attends to: (tokens, n_read) bool.

        spans: the first and last position of the span that each token is in.
        """
        n = self.n_read
        mine = self.members[slots // _BITS, :n] & _bit(slots)[:, None] != 0
        cells = self.positions[:n]
        rows = positions[:, None]
        in_span: Array | bool = False
        if spans is not None:
            first, last = spans
            in_span = (cells >= first[:, None]) & (cells <= last[:, None])
        visible: Array = cells <= rows
        if self.reach.spans == "windowed":
            visible |= in_span
        if self.reach.window:
            visible &= rows - cells < self.reach.window
        elif self.reach.chunk:
            visible &= cells >= rows - rows % self.reach.chunk
        if self.reach.spans == "whole":
            visible |= in_span
        visible &= mine
        return visible

    @property
    def n_read(self) -> int:
        """The cells that a graph must read: up to the last one in use, rounded up."""
        while self._end and not self._is_used(self._end - 1):
            used = np.flatnonzero(self.members[:, max(0, self._end - _SEARCHED_AT_ONCE) : self._end].any(axis=0))
            self._end = max(0, self._end - _SEARCHED_AT_ONCE) + (int(used[-1]) + 1 if len(used) else 0)
        blocks = -(-max(1, self._end) // self.padding)
        return min(round_up(blocks, self._per_octave) * self.padding, self.most_read)

    def _is_used(self, cell: int) -> bool:
        return bool(self.members[0, cell]) or (len(self.members) > 1 and bool(self.members[:, cell].any()))

    @property
    def most_read(self) -> int:
        """``n_read`` when all cells are in use."""
        return -(-self.n // self.padding) * self.padding

    def held_by(self, slot: int) -> Array:
        """Return which cells hold tokens of a slot: (n_rows,) bool."""
        found: Array = self._word(slot) & _bit(slot) != 0
        return found

    def length(self, slot: int) -> int:
        mine = self.held_by(slot)
        return int(self.positions[mine].max()) + 1 if mine.any() else 0

    def share(self, source: int, target: int, n: int) -> None:
        shared = self.held_by(source) & (self.positions < n)
        self._word(target)[shared] |= _bit(target)
        self._forget(target)

    def move(self, slot: int, cells: Array, by: int) -> None:
        """Add ``by`` to the positions of cells that only this slot holds."""
        self.positions[cells] += by
        self._forget(slot)

    def resume_position(self, slot: int, position: int) -> int:
        """Return the greatest position, at most ``position``, whose token would find everything that it attends to."""
        if position == 0 or self._holds(slot, position):
            return position
        # the window has moved past it, or the sequence is shorter
        n = min(position, self.length(slot))
        if n < position and self._holds(slot, n):
            return n
        return self.reach.first_seen(n) if self.reach.chunk else 0

    def found(self, slot: int, start: int, stop: int) -> Array:
        """Return the cells of a slot's tokens at positions ``start`` to ``stop``, in order of position."""
        cells = np.flatnonzero(self.held_by(slot) & (self.positions >= start) & (self.positions < stop))
        ordered: Array = cells[np.argsort(self.positions[cells])]
        return ordered

    def restore(self, slot: int, positions: Array) -> Array:
        """Take cells for tokens of a slot that are written again; ``commit`` follows. Raises CacheFullError."""
        self._forget(slot)
        return self.allocate(positions, np.full(len(positions), slot), len(positions))

    def _holds(self, slot: int, position: int) -> bool:
        first = self.reach.first_seen(position)
        held = self.positions[self.held_by(slot)]
        return int(np.count_nonzero((held >= first) & (held < position))) == position - first

    def remove(self, slot: int, start: int, stop: int | None) -> None:
        gone = self.held_by(slot) & (self.positions >= start)
        if stop is not None:
            gone &= self.positions < stop
        self._word(slot)[gone] &= ~_bit(slot)
        self._tidy()
        self._forget(slot)

    def _forget(self, slot: int) -> None:
        """Forget what is kept of a slot whose cells change."""
        for kept in self._kept:
            kept.pop(slot, None)
        self._next.pop(slot, None)

    def slots_sharing(self, slot: int, start: int) -> SlotBits:
        mine = self.held_by(slot) & (self.positions >= start)
        return self._present(mine) & ~(1 << slot)

    def _present(self, cells: Array | slice) -> SlotBits:
        """Return the slots that hold any of these cells."""
        words = np.bitwise_or.reduce(self.members[:, cells], axis=1)
        return sum(int(word) << _BITS * i for i, word in enumerate(words))

    def _unseen(self) -> Array:
        """Return for each cell the slots whose next token will not attend to it."""
        short = self.reach.most > 0
        unseen = np.zeros((len(self.members), self.n_rows if short else 1), np.uint64)
        present = self._present(slice(None)) if short else 0
        for s in slots_of(present):
            mine = self.held_by(s)
            old = mine & (self.positions < self.reach.first_seen(int(self.positions[mine].max()) + 1))
            unseen[s // _BITS, old] |= _bit(s)
        return unseen

    def _tidy(self) -> None:
        self.positions[~self.used] = _FREE
