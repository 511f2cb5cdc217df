"""Slots: which rows the cache holds, and for which sequence: shared prefixes, forks, evictions, shifts.

A slot is one of the cache's places for a sequence, identified by a number. A sequence owns a slot while it is worked
on. The rows stay when the owner is gone: other sequences that begin with the same rows use them, until the room is
needed; then a PrefixStore may keep them. Rows are *committed* when their graph is about to be started, and count as
computed from then on. They are *confirmed* when it is complete. Graphs are computed by ``shift``, ``discard``, ``save``
and, with a store, by ``attach``, ``restore_some`` and ``begin``. Every caller holds the engine's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from hotshoe.kvcache import Allocation, Cache
from hotshoe.runner.cached_sequence import CachedSequence, Nearest, Slot
from hotshoe.runner.items import Items, n_common
from hotshoe.runner.prefixes import BLOCK, PrefixStore
from hotshoe.runner.scheduler import Chunk
from hotshoe_core.errors import CacheFullError, GraphError

__all__ = ["Slots"]

_FEWEST_STORED = 64  # rows that are worth a place in the store, or the way back
_RESTORED_AT_ONCE = 4  # blocks: others wait for them
_LONG = 4 * BLOCK  # rows: others would wait for the store to get more

Array = np.ndarray[Any, Any]


class Slots:
    """The ``n`` slots of one cache. store: keeps what the cache has no more room for."""

    def __init__(self, cache: Cache, n: int, store: PrefixStore | None = None) -> None:
        self.cache = cache
        self.store = store
        self._slots = [Slot(i) for i in range(n)]
        self._computing: list[tuple[Slot, int]] = []  # of the graph that the device computes: its slots, and their rows
        self._clock = 0

    # Sequences

    def attach(self, sequence: CachedSequence, n_reusable: int, keep: Iterable[CachedSequence] = ()) -> None:
        """Give a sequence a slot that holds as many of its first ``n_reusable`` rows as any slot does.

        Later rows are to be computed (again). If all slots are owned, the least recently used one whose owner is not
        among ``keep`` is evicted. Raises CacheFullError if no slot can be evicted.
        """
        sequence.edited = False
        slot = self._slot_of(sequence)
        if slot is None:
            if all(s.owner is not None or s.busy for s in self._slots):
                kept = {id(s.slot) for s in keep}
                victims = [s for s in self._slots if id(s) not in kept and not s.busy]
                if not victims:
                    raise CacheFullError(
                        f"all {len(self._slots)} slots of the cache are in use",
                        hint="use a larger max_sequences, or close a sequence",
                    )
                self._save_and_evict(min(victims, key=lambda s: s.used))
            slot, sequence.nearest = self._slot_for(sequence.items, n_reusable)
            slot.owner, slot.used = sequence, self._clock
            sequence.slot, sequence.n_computed = slot, len(slot.rows)
        elif sequence.n_computed < len(slot.rows) or sequence.n_computed > n_reusable:
            n = sequence.items.outside_span(min(sequence.n_computed, n_reusable))
            sequence.n_computed = self.cache.resume_position(slot.number, n)
            self._trim(slot, sequence.n_computed)

    def restore_some(self, sequence: CachedSequence) -> bool:
        """Bring a few more rows of an attached sequence back from the store. Return whether more are to come.

        While they do, the sequence is not computed. Others are computed in between. Computes graphs.
        """
        slot, store = self._slot_of(sequence), self.store
        if slot is None or store is None or not slot.coming:
            return False
        keys, slot.coming, n = slot.coming[:_RESTORED_AT_ONCE], slot.coming[_RESTORED_AT_ONCE:], slot.n_with_coming
        slot.busy = True  # an interrupt leaves it True: the rollback of the step removes the rows without a record
        try:
            for key in keys:
                block, first = store.get(key), len(slot.rows)
                rows = [] if block is None else block.rows[: n - first]
                if block is None or rows != sequence.items.rows[first : first + len(rows)]:
                    slot.coming = []  # its file is damaged, or the sequence was changed meanwhile
                    break
                self.cache.restore(slot.number, block.arrays, n)
                slot.rows += rows
        except CacheFullError:
            slot.coming = []  # what came back is used
        if not slot.coming:
            n = self.cache.resume_position(slot.number, len(slot.rows))
            self._trim(slot, sequence.items.outside_span(n))
        sequence.n_computed = len(slot.rows)
        slot.busy = False
        return bool(slot.coming)

    def detach(self, sequence: CachedSequence) -> None:
        """Make the sequence's slot available to others. Its rows stay in it."""
        slot = self._slot_of(sequence)
        if slot is not None:
            slot.owner = None
            if slot.coming:
                self._trim(slot, self.cache.resume_position(slot.number, len(slot.rows)))
        sequence.slot, sequence.n_computed = None, 0

    def truncate(self, sequence: CachedSequence, n: int) -> None:
        """Keep the first ``n`` rows. Raises GraphError inside a span."""
        sequence.items.truncate(n)
        sequence.n_computed = min(sequence.n_computed, n)
        sequence.edited = True

    def fork_sequence(self, source: CachedSequence, copy: CachedSequence) -> None:
        """Share the computed rows of ``source`` with ``copy``, which has the same items."""
        slot = self._slot_of(source)
        idle = self._idle()
        if slot is None or not idle:
            return  # the copy's rows are computed when it goes on
        n = source.items.outside_span(min(source.n_computed, self._n_confirmed(slot)))
        n = self.cache.resume_position(slot.number, n)
        idle_slot = idle[0]
        self._copy(slot, idle_slot, n)
        if slot.shifted_from is not None and slot.shifted_from < n:
            idle_slot.shifted_from = slot.shifted_from
        idle_slot.owner, idle_slot.used = copy, self._clock
        copy.slot, copy.n_computed = idle_slot, n

    def forget(self) -> None:
        """Empty the slots that no sequence owns."""
        for slot in self._slots:
            if slot.owner is None and not slot.busy:
                self._evict(slot)

    def save(self) -> None:
        """Give all rows to the store: the model is about to be closed."""
        for slot in self._slots:
            self._save(slot)
        if self.store is not None:
            self.store.flush()

    def discard(self, sequences: Iterable[CachedSequence]) -> None:
        """Remove the rows of sequences that gave NaN, and all rows without an owner. Computes a graph.

        Rows that no sequence owns may be the cause: they are read too, and the mask cannot hide NaN. A text without
        fault that shared the graph may have read them: it fails with an error once, and works when it is repeated.
        """
        for sequence in sequences:
            slot = self._slot_of(sequence)
            if slot is not None:
                self._evict(slot)
        self.forget()
        self.cache.scrub()

    # Graphs

    def allocation(self, sequence: CachedSequence, n: int) -> Allocation:
        """Return the cache's record of the next ``n`` rows of an attached sequence."""
        slot = self._slot_of(sequence)
        if slot is None:
            raise GraphError("the sequence is not in the cache")
        start = sequence.n_computed
        spans = tuple(span for span in sequence.items.bidirectional if span[0] < start + n and start < span[1])
        encoded = tuple((entry.start, len(entry.span.array)) for entry in sequence.items.attended(start, n))
        written, guessed = sequence.has_written(start), n > sequence.n_pending
        return Allocation(slot.number, start, n, spans, encoded, written, guessed)

    def has_room(self, allocations: Sequence[Allocation]) -> bool:
        """Whether the cache has room for these rows without a loss of others."""
        return self.cache.fits(allocations)

    def fits(self, allocations: Sequence[Allocation], min_free: int) -> bool:
        """Whether the cache has room for these rows and ``min_free`` more, if need be instead of other sequences."""
        slots = [a.slot for a in allocations]
        return self.cache.fits(allocations, None, min_free) or self.cache.fits(allocations, slots, min_free)

    def begin(self, chunks: Sequence[Chunk[Any]], n_rows: int, keep: Iterable[CachedSequence] = ()) -> dict[str, Array]:
        """Allocate the rows of a graph of ``n_rows`` rows; return the values of the cache's inputs.

        keep: sequences whose rows must stay, as later graphs of the step continue them. ``commit``, ``cancel`` or
        ``rollback`` must follow, even after an error. Raises CacheFullError.
        """
        allocations = [self.allocation(chunk.job.sequence, chunk.n) for chunk in chunks]
        for chunk, a in zip(chunks, allocations, strict=True):
            slot = self._slots[a.slot]
            slot.busy = True
            slot.pending = chunk.job.sequence.rows(a.start, a.n)
        try:
            return self.cache.allocate(allocations, n_rows)
        except CacheFullError:
            self._make_room(allocations, {slot.number for slot in map(self._slot_of, keep) if slot is not None})
            return self.cache.allocate(allocations, n_rows)

    def begin_next(self, sequences: Sequence[CachedSequence], n_rows: int) -> dict[str, Array] | None:
        """Do as ``begin`` for one more row of each sequence, which is not known yet; None if there is no room.

        ``set_pending`` and ``commit``, ``cancel`` or ``rollback`` must follow.
        """
        allocations = [self.allocation(sequence, 1) for sequence in sequences]
        try:
            feeds = self.cache.allocate(allocations, n_rows)
        except CacheFullError:
            self.cache.rollback()
            return None
        for a in allocations:
            self._slots[a.slot].busy = True
        return feeds

    def set_pending(self, sequences: Iterable[CachedSequence]) -> None:
        """Note the last row of each sequence as the one that the graph computes."""
        for sequence in sequences:
            slot = self._slot_of(sequence)
            assert slot is not None  # it was busy meanwhile
            slot.pending = sequence.items.rows[-1:]

    def cancel(self) -> None:
        """Undo a graph that was begun, and neither committed nor started."""
        self.cache.rollback()
        for slot in self._slots:
            if slot.busy:
                slot.pending, slot.busy = [], False

    def commit(self) -> None:
        """Keep the rows of the graph: it is about to be started, and all later graphs find them computed.

        ``confirm`` or ``rollback`` must follow.
        """
        self.cache.commit()
        self._clock += 1
        for slot in self._slots:
            if not slot.busy:
                continue
            self._computing.append((slot, len(slot.rows)))
            slot.rows += slot.pending
            slot.pending, slot.used, slot.busy = [], self._clock, False
            owner = slot.owner
            if owner is not None and not owner.edited:
                owner.n_computed = len(slot.rows)

    def confirm(self) -> None:
        """Note that the graph that was committed is computed."""
        self._computing.clear()

    def drop_rejected(self, sequence: CachedSequence, start: int) -> None:
        """Remove the rows of guessed tokens, from ``start`` on, that the sequence did not take.

        Rows before them are computed again if there is no state after them. Their keys and values stay until
        ``drop_held``, so that new guesses can attend to them.
        """
        slot = self._slot_of(sequence)
        if slot is not None and sequence.n_computed >= len(sequence):
            n = start + n_common(slot.rows[start:], sequence.items.rows[start:])
            if n < len(slot.rows):
                sequence.n_computed = self.cache.resume_position(slot.number, n)
                self._trim_record(slot, sequence.n_computed)
                self.cache.remove(slot.number, n)
                slot.n_held = n if n > sequence.n_computed else 0

    def begin_draft(self, sequence: CachedSequence) -> Slot | None:
        """Return the sequence's slot, if it holds the keys and values of all rows but the last one.

        The slot is busy until ``end_draft``, when the cells behind these rows are given back. After an interrupt,
        ``rollback`` does that.
        """
        slot = self._slot_of(sequence)
        if slot is None or sequence.edited or max(slot.n_held, len(slot.rows)) != len(sequence) - 1:
            return None
        slot.busy = True
        return slot

    def end_draft(self, slot: Slot) -> None:
        """Note that nothing computes with the slot any more."""
        slot.busy = False

    def drop_held(self) -> None:
        """Remove the keys and values that ``drop_rejected`` has left behind the rows of a recurrent model."""
        for slot in self._slots:
            if slot.n_held:
                slot.n_held = 0
                self.cache.remove(slot.number, len(slot.rows))

    def rollback(self) -> None:
        """Undo graphs and a shift that were begun and not finished. Idempotent: it may be interrupted itself."""
        self.cache.rollback()
        busy = [slot for slot in self._slots if slot.busy]
        for slot, n_rows in [*((slot, len(slot.rows)) for slot in busy), *self._computing]:
            owner = slot.owner
            n = self.cache.resume_position(slot.number, min(n_rows, len(slot.rows)))
            self._trim(slot, n)
            if owner is not None:
                owner.n_computed = min(owner.n_computed, n)
                owner.draft = []  # if the graph failed by it, the next one must not
            slot.pending = []
        for slot in busy:
            slot.busy = False
        self._computing.clear()

    # Shifts

    def shift(self, sequence: CachedSequence, keep: int, n: int) -> None:
        """Remove ``n`` rows after the first ``keep``, and move the later rows up. Computes a graph.

        Rows whose cells are shared with another living sequence are computed again, later. So are the rows from a
        picture on, if later rows then attend to it and the cache has dropped it. Raises GraphError if positions cannot
        be moved.
        """
        refusal = self.shift_refusal(sequence.items)
        if refusal is not None:
            raise GraphError(f"the sequence cannot be shifted: {refusal}")
        start = keep + n
        slot = self._slot_of(sequence)
        items = sequence.items.copy()
        items.cut(keep, start)  # raises inside a span
        if slot is not None:
            self._evict_sharing(slot, start)
        if slot is None or start > sequence.n_computed or self.cache.slots_sharing(slot.number, start):
            sequence.items, sequence.edited = items, True
            sequence.n_computed = min(sequence.n_computed, keep)
            return
        slot.busy = True
        try:
            tail = slot.rows[start : sequence.n_computed]
            self._trim_record(slot, keep)  # if interrupted, the slot records only the rows that do not change
            self.cache.remove(slot.number, start + len(tail))
            self.cache.remove(slot.number, keep, start)
            self.cache.shift(slot.number, start, -n)
            sequence.items, sequence.edited = items, True
            if n and tail:
                slot.shifted_from = keep if slot.shifted_from is None else min(keep, slot.shifted_from)
            slot.rows += tail
            sequence.n_computed = self.cache.resume_position(slot.number, len(slot.rows))
            self._trim(slot, sequence.n_computed)  # the next row may need a picture that the cache has dropped
            slot.busy = False
        except BaseException:
            self.rollback()
            raise

    def shift_refusal(self, items: Items) -> str | None:
        """Return the reason why a sequence of these items cannot be shifted; None if it can."""
        if self.cache.shift_refusal is not None:
            return self.cache.shift_refusal
        return "a span of embeddings in it has positions of its own" if items.has_own_positions else None

    def _evict_sharing(self, slot: Slot, start: int) -> None:
        """Evict the slots without an owner that share rows from ``start`` on with this one."""
        others = self.cache.slots_sharing(slot.number, start)
        for other in self._slots:
            if other.number in others and other.owner is None and not other.busy:
                self._evict(other)

    # Slots

    def _slot_of(self, sequence: CachedSequence) -> Slot | None:
        slot = sequence.slot
        return slot if slot is not None and slot.owner is sequence else None

    def _n_confirmed(self, slot: Slot) -> int:
        """Return how many rows of a slot are computed for certain: others must not share those of a running graph."""
        return min((n for computing, n in self._computing if computing is slot), default=len(slot.rows))

    def _idle(self) -> list[Slot]:
        """Return the slots without an owner: empty ones first, long ones last, else the least recently used first."""
        idle = [s for s in self._slots if s.owner is None and not s.busy]
        return sorted(idle, key=lambda s: (bool(s.rows), len(s.rows) > _LONG, s.used))

    def _take_empty_slot(self) -> Slot:
        slot = self._idle()[0]
        self._save_and_evict(slot)
        return slot

    def _slot_for(self, items: Items, n_reusable: int) -> tuple[Slot, Nearest]:
        """Return a slot without an owner that holds as many of the first ``n_reusable`` rows as possible."""
        best, n, nearest = self._longest_prefix(items, n_reusable)
        restored = self._restored(items, n_reusable, n)
        if restored is not None:
            return restored
        if best is None:
            return self._take_empty_slot(), nearest
        idle = self._idle()
        idle_slot = next((s for s in idle if s is not best), None)
        if best in idle and (idle_slot is None or len(best.rows) - n <= len(idle_slot.rows)):  # what would be lost
            self._save(best, n)
            self._trim(best, n)
            return best, nearest
        assert idle_slot is not None  # attach made sure that a slot is idle, and it is not best
        self._save(idle_slot)
        self._copy(best, idle_slot, n)
        return idle_slot, nearest

    def _restored(self, items: Items, n_reusable: int, n_cached: int) -> tuple[Slot, Nearest] | None:
        """Return a slot for rows of the store, if this has many more of them than the cache: see ``restore_some``."""
        if self.store is None:
            return None
        found = self.store.match(items.rows[:n_reusable])
        n = items.outside_span(found.n)
        if n - n_cached < _FEWEST_STORED:
            return None
        slot = self._take_empty_slot()
        wanted = [Allocation(slot.number, 0, n)]
        for other in sorted(self._idle(), key=lambda s: s.used):
            while other.rows and not self.cache.fits(wanted, None, _FEWEST_STORED):
                self._save_and_shorten(other)
        if not self.cache.fits(wanted):
            return None
        slot.coming, slot.n_with_coming = found.keys, n
        return slot, Nearest(found.n, found.other)

    def _longest_prefix(self, items: Items, n_reusable: int) -> tuple[Slot | None, int, Nearest]:
        best, longest, nearest = None, 0, Nearest()
        for slot in sorted(self._slots, key=lambda s: s.owner is not None):
            if not slot.rows:
                continue
            n = min(n_common(slot.rows, items.rows), self._n_confirmed(slot))
            if n > nearest.n:
                nearest = Nearest(n, slot.rows[n] if n < min(len(slot.rows), len(items)) else None)
            n = min(n, n_reusable)
            if slot.shifted_from is not None:
                n = min(n, slot.shifted_from)
            n = items.outside_span(n)
            if n > longest:
                n = items.outside_span(self.cache.resume_position(slot.number, n))
            if n > longest and self.cache.can_resume(slot.number, n):
                best, longest = slot, n
        return best, longest, nearest

    def _save(self, slot: Slot, start: int = 0) -> None:
        """Give rows from ``start`` on to the store. Computes graphs."""
        if self.store is None or len(slot.rows) - start < _FEWEST_STORED or slot.shifted_from is not None:
            return
        if self._n_confirmed(slot) < len(slot.rows):  # its last rows may be lost yet
            return

        def size(first: int, last: int) -> int:
            return self.cache.held_bytes(slot.number, first, last)

        for place in self.store.missing(slot.rows, start, size):
            self.store.put(slot.rows, place, self.cache.save(slot.number, place.first, place.last))

    def _save_and_evict(self, slot: Slot) -> None:
        self._save(slot)
        self._evict(slot)

    def _copy(self, source: Slot, target: Slot, n: int) -> None:
        target.shifted_from = None
        target.rows, target.n_held = [], 0
        self.cache.copy_prefix(source.number, target.number, n)
        target.rows = source.rows[:n]

    def _make_room(self, allocations: Sequence[Allocation], keep: set[int]) -> None:
        """Evict slots until the rows fit: first those without an owner, then the least recently used ones."""
        needed = keep | {a.slot for a in allocations}
        others = [s for s in self._slots if s.rows and s.number not in needed and not s.busy]
        for victim in sorted(others, key=lambda s: (s.owner is not None, s.used)):
            while victim.rows:
                self._save_and_shorten(victim)
                if self.cache.fits(allocations):
                    return

    def _save_and_shorten(self, slot: Slot) -> None:
        """Evict the last block of a text without an owner, so that no step takes long; a whole text with an owner."""
        n = (len(slot.rows) - 1) // BLOCK * BLOCK if slot.owner is None else 0
        self._save(slot, n)
        if n:
            self._trim(slot, n)
        else:
            self._evict(slot)

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
        slot.coming, slot.n_held = [], 0
        if slot.shifted_from is not None and n <= slot.shifted_from:
            slot.shifted_from = None
