"""What the cache holds: slots, the prefixes they have in common, forks, evictions. No tensor is touched here.

A slot is a number of the cache with the rows that it holds. Sequences own slots while they are worked on; what is in a
slot stays when its owner is gone, for others that begin alike, until the room is needed. Whoever calls holds the
engine's lock.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hotshoe.kvcache import Cache, Placed
from hotshoe.runner.items import Items, Row, n_common
from hotshoe_core.errors import CacheFullError, GraphError

__all__ = ["Held", "Part", "Slot", "Slots"]

Array = np.ndarray[Any, Any]


class Held:
    """What the prefix room knows of a sequence: its items, and how many rows of them its slot holds."""

    def __init__(self, items: Items) -> None:
        self.items = items
        self.n_computed = 0
        self.edits = 0  # how often rows were taken out: a step on its way does not count for them
        self.slot: Slot | None = None

    def __len__(self) -> int:
        return len(self.items)

    @property
    def n_pending(self) -> int:
        """How many rows are still to be computed."""
        return len(self.items) - self.n_computed


class Part(NamedTuple):
    """The next ``n`` rows of a sequence; the logits after the last ``outputs`` of them are asked for."""

    sequence: Held
    n: int
    outputs: int = 1


class Slot:
    """A number of the cache, with the rows it holds at positions 0, 1, 2, …"""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: list[Row] = []
        self.used = 0  # when a step last computed something of it
        self.shifted_from: int | None = None  # keys from here on were turned, not computed: nobody else's exact prefix
        self.busy = False  # a step or a shift is changing it
        self._owner: weakref.ref[Held] | None = None

    @property
    def owner(self) -> Held | None:
        return None if self._owner is None else self._owner()

    @owner.setter
    def owner(self, sequence: Held | None) -> None:
        self._owner = None if sequence is None else weakref.ref(sequence)


class _Step(NamedTuple):
    """A part on its way: where it began, and the rows as they were then."""

    sequence: Held
    slot: Slot
    start: int
    rows: list[Row]
    edits: int


class Slots:
    """The slots of one cache, ``n`` at most in use."""

    def __init__(self, cache: Cache, n: int) -> None:
        self.cache = cache
        self._slots = [Slot(i) for i in range(n)]
        self._steps: list[_Step] = []
        self._clock = 0

    # Places

    def attach(self, sequence: Held, *, reuse: bool = True, whole: bool = False, keep: Iterable[Held] = ()) -> Slot:
        """Give a sequence a slot, with as much of its beginning in it as any other has.

        At least its last row is left to be computed, for its logits; with ``whole`` all may be there. If all slots are
        taken, one whose owner is not among ``keep`` loses it. Raises CacheFullError if there is none.
        """
        last = max(0, len(sequence) - (not whole))
        slot = self._slot_of(sequence)
        if slot is None:
            if all(s.owner is not None or s.busy for s in self._slots):
                kept = {id(s.slot) for s in keep}
                taken = [s for s in self._slots if id(s) not in kept and not s.busy]
                if not taken:
                    raise CacheFullError(
                        f"all {len(self._slots)} places of the cache are in use",
                        hint="load the model with a larger max_sequences, or close a sequence",
                    )
                self._evict(min(taken, key=lambda s: s.used))
            slot = self._slot_for(sequence.items, last) if reuse else self._emptied()
            slot.owner, slot.used = sequence, self._clock
            sequence.slot, sequence.n_computed = slot, len(slot.rows)
        elif sequence.n_computed < len(slot.rows) or sequence.n_computed > last:
            n = sequence.items.between_pieces(min(sequence.n_computed, last))
            sequence.n_computed = self.cache.resumable(slot.number, n)
            self._trim(slot, sequence.n_computed)
        return slot

    def detach(self, sequence: Held) -> None:
        """The slot is free for others; its rows stay in it."""
        slot = self._slot_of(sequence)
        if slot is not None:
            slot.owner = None
        sequence.slot, sequence.n_computed = None, 0

    def fork(self, source: Held, twin: Held) -> None:
        """Share with ``twin``, which has the same items, what was computed of them."""
        slot = self._slot_of(source)
        idle = self._idle()
        if slot is None or not idle:
            return  # it is computed when it goes on
        n = source.items.between_pieces(min(source.n_computed, len(slot.rows)))
        n = self.cache.resumable(slot.number, n)
        spare = idle[0]
        self._copy(slot, spare, n)
        if slot.shifted_from is not None and slot.shifted_from < n:
            spare.shifted_from = slot.shifted_from
        spare.owner, spare.used = twin, self._clock
        twin.slot, twin.n_computed = spare, n

    def forget(self) -> None:
        """Drop what slots hold that nobody owns."""
        for slot in self._slots:
            if slot.owner is None and not slot.busy:
                self._evict(slot)

    # Steps

    def placed(self, sequence: Held, n: int) -> Placed:
        """The next ``n`` rows of an attached sequence, as the cache asks for them."""
        slot = self._slot_of(sequence)
        if slot is None:
            raise GraphError("the sequence has no place in the cache")
        start = sequence.n_computed
        spans = tuple(p for p in sequence.items.pieces if p[0] < start + n and start < p[1])
        return Placed(slot.number, start, n, spans)

    def place(self, parts: Sequence[Part], n_rows: int) -> dict[str, Array]:
        """Begin a step: take the places of its rows; the feeds of the cache's inputs. Raises CacheFullError.

        ``commit`` or ``rollback`` must follow, whatever happens.
        """
        for part in parts:
            slot = self._slot_of(part.sequence)
            assert slot is not None  # placed says so otherwise
            slot.busy = True
            start = part.sequence.n_computed
            rows = part.sequence.items.rows[start : start + part.n]
            self._steps.append(_Step(part.sequence, slot, start, rows, part.sequence.edits))
        step = [self.placed(part.sequence, part.n) for part in parts]
        try:
            return self.cache.place(step, n_rows)
        except CacheFullError:
            self._make_room(step)
            return self.cache.place(step, n_rows)

    def commit(self) -> None:
        """The step was computed: its rows are there now."""
        self.cache.commit()
        self._clock += 1
        for sequence, slot, start, rows, edits in self._steps:
            slot.rows[start:] = rows
            slot.used = self._clock
            slot.busy = False
            if sequence.slot is slot and sequence.edits == edits:
                sequence.n_computed = start + len(rows)
        self._steps = []

    def rollback(self) -> None:
        """Undo what was begun and not finished, a step or a shift. Idempotent, for it may be interrupted itself."""
        self.cache.rollback()
        for slot in self._slots:
            if slot.busy:
                owner = slot.owner
                n = self.cache.resumable(slot.number, len(slot.rows))
                self._trim(slot, n)
                if owner is not None:
                    owner.n_computed = min(owner.n_computed, n)
        self._steps = []
        for slot in self._slots:
            slot.busy = False

    def fits(self, step: Sequence[Placed], spare: int) -> bool:
        """Whether all these rows find room together, and ``spare`` more, if need be instead of other sequences."""
        return self.cache.fits(step, None, spare) or self.cache.fits(step, [p.sequence for p in step], spare)

    # Shifts

    def shift(self, sequence: Held, keep: int, n: int) -> None:
        """Forget ``n`` rows after the first ``keep``; those behind them move up. Computes a graph.

        Rows are computed anew, later, where their cells are shared with a living sequence. Raises GraphError where
        positions cannot be moved.
        """
        refusal = self.shift_refusal(sequence.items)
        if refusal is not None:
            raise GraphError(f"the sequence cannot be shifted: {refusal}")
        start = keep + n
        slot = self._slot_of(sequence)
        items = sequence.items.copy()
        items.cut(keep, start)  # raises in the middle of a span
        if slot is not None:
            self._share_with_nobody(slot, start)
        if slot is None or start > sequence.n_computed or self.cache.sharing(slot.number, start):
            sequence.items, sequence.edits = items, sequence.edits + 1
            sequence.n_computed = min(sequence.n_computed, keep)
            return
        slot.busy = True
        try:
            tail = slot.rows[start : sequence.n_computed]
            self._trim_record(slot, keep)  # until the end, it holds no more than what stays as it is
            self.cache.remove(slot.number, start + len(tail))
            self.cache.remove(slot.number, keep, start)
            self.cache.shift(slot.number, start, -n)
            sequence.items, sequence.edits = items, sequence.edits + 1
            sequence.n_computed = keep + len(tail)
            if n and tail:
                slot.shifted_from = keep if slot.shifted_from is None else min(keep, slot.shifted_from)
            slot.rows += tail
            slot.busy = False
        except BaseException:
            self.rollback()
            raise

    def shift_refusal(self, items: Items) -> str | None:
        """Why a sequence of these items cannot be shifted; None if it can."""
        if self.cache.shift_refusal is not None:
            return self.cache.shift_refusal
        return "a span of embeddings in it has positions of its own" if items.has_own_positions else None

    def _share_with_nobody(self, slot: Slot, start: int) -> None:
        others = self.cache.sharing(slot.number, start)
        for other in self._slots:
            if other.number in others and other.owner is None and not other.busy:
                self._evict(other)

    # Slots

    def _slot_of(self, sequence: Held) -> Slot | None:
        slot = sequence.slot
        return slot if slot is not None and slot.owner is sequence else None

    def _idle(self) -> list[Slot]:
        """Slots nobody owns: the empty ones first, then those longest unused."""
        idle = [s for s in self._slots if s.owner is None and not s.busy]
        return sorted(idle, key=lambda s: (bool(s.rows), s.used))

    def _emptied(self) -> Slot:
        slot = self._idle()[0]
        self._trim(slot, 0)
        return slot

    def _slot_for(self, items: Items, most: int) -> Slot:
        """A slot nobody owns, beginning as ``items`` do, with up to ``most`` of their rows."""
        best, n = self._longest_prefix(items, most)
        if best is None:
            return self._emptied()
        idle = self._idle()
        spare = next((s for s in idle if s is not best), None)
        if best in idle and (n == len(best.rows) or spare is None or spare.rows):
            self._trim(best, n)
            return best
        assert spare is not None  # attach has seen to it that there is an idle one, and it is not best
        self._copy(best, spare, n)
        return spare

    def _longest_prefix(self, items: Items, most: int) -> tuple[Slot | None, int]:
        best, longest = None, 0
        for slot in sorted(self._slots, key=lambda s: s.owner is not None):
            if not slot.rows:
                continue
            n = min(n_common(slot.rows, items.rows), most)
            if slot.shifted_from is not None:
                n = min(n, slot.shifted_from)
            n = items.between_pieces(n)
            if n > longest:
                n = items.between_pieces(self.cache.resumable(slot.number, n))
            if n > longest and self.cache.can_resume(slot.number, n):
                best, longest = slot, n
        return best, longest

    def _copy(self, source: Slot, target: Slot, n: int) -> None:
        target.shifted_from = None
        target.rows = []
        self.cache.copy_prefix(source.number, target.number, n)
        target.rows = source.rows[:n]

    def _make_room(self, step: Sequence[Placed]) -> None:
        """Take slots out of the cache until the step fits: first those nobody owns, then those longest unused."""
        needed = {p.sequence for p in step}
        others = [s for s in self._slots if s.rows and s.number not in needed and not s.busy]
        for victim in sorted(others, key=lambda s: (s.owner is not None, s.used)):
            self._evict(victim)
            if self.cache.fits(step):
                return

    def _evict(self, slot: Slot) -> None:
        owner = slot.owner
        if owner is not None:
            owner.slot, owner.n_computed = None, 0
        slot.owner = None
        self._trim(slot, 0)

    def _trim(self, slot: Slot, n: int) -> None:
        self._trim_record(slot, n)
        self.cache.remove(slot.number, n)

    def _trim_record(self, slot: Slot, n: int) -> None:
        del slot.rows[n:]
        if slot.shifted_from is not None and n <= slot.shifted_from:
            slot.shifted_from = None
