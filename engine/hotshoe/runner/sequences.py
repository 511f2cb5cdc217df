"""Sequences of tokens and what the cache holds of them: prefixes shared, room made, many computed at once."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe.kvcache import MAX_SEQUENCES, CausalCache
from hotshoe_core.errors import GraphError, InputTooLongError, TokenizerError

if TYPE_CHECKING:
    from typing_extensions import Self

    from hotshoe.kvcache.causal import RopeOf
    from hotshoe.runner.contexts import ContextCache
    from hotshoe.sampling import DeviceOp

__all__ = ["CHUNK", "Part", "Sequence", "SequencePool"]

CHUNK = 512  # tokens computed at once, at most

Array = np.ndarray[Any, Any]


class Sequence:
    """Tokens that grow, and their keys and values in the cache. Made by ``TextModel.sequence``.

    What other sequences, past ones included, computed of its beginning is not computed again. A sequence may lose its
    place in the cache to others while nobody extends it; it is then computed anew, at the next ``append``.
    """

    def __init__(self, pool: SequencePool, ids: Iterable[int] = ()) -> None:
        self.ids: list[int] = list(ids)
        self.n_computed = 0
        self._pool = pool
        self._slot: _Slot | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def n_pending(self) -> int:
        """How many of the tokens are still to be computed."""
        return len(self.ids) - self.n_computed

    def append(self, *ids: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Add tokens; returns the logits after the last one: float32 (vocab,).

        Raises InputTooLongError when they do not fit into the context, TokenizerError for what is no token; the
        sequence is then as before, as it is after an interruption.
        """
        logits: Array = self._pool.extend([(self, ids)])[0]
        return logits

    def truncate(self, n: int) -> None:
        """Keep the first ``n`` tokens. Raises GraphError if there are fewer."""
        self._require(0 <= n <= len(self.ids), f"keep the first {n}")
        with self._pool.lock:
            del self.ids[n:]
            self.n_computed = min(self.n_computed, len(self.ids))

    def fork(self) -> Sequence:
        """Another sequence with the same tokens. What was computed of them is shared, not copied."""
        with self._pool.lock:
            twin = Sequence(self._pool, self.ids)
            self._pool.attach(twin)
            return twin

    def shift(self, keep: int, n: int) -> None:
        """Forget ``n`` tokens after the first ``keep``, and move those that follow to the front.

        Their keys are turned to the new positions, not computed anew: what they took from the forgotten tokens
        stays in them. Raises GraphError if there are fewer tokens than that.
        """
        self._require(keep >= 0 and n >= 0 and keep + n <= len(self.ids), f"forget {n} after the first {keep}")
        with self._pool.lock:
            self._pool.shift(self, keep, n)

    def close(self) -> None:
        """Give the place in the cache back. Its tokens stay there for others that begin alike, while there is room."""
        with self._pool.lock:
            self._pool.detach(self)

    def _require(self, fits: bool, what: str) -> None:
        if not fits:
            raise GraphError(f"a sequence of {len(self.ids)} tokens cannot {what}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Part(NamedTuple):
    """The next ``n`` tokens of a sequence; the logits after the last ``outputs`` of them are wanted."""

    sequence: Sequence
    n: int
    outputs: int = 1


class _Slot:
    """A number of the cache, with the tokens it holds at positions 0, 1, 2, …"""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tokens: list[int] = []
        self.used = 0  # the pool's clock, when last computed
        self._owner: weakref.ref[Sequence] | None = None

    @property
    def owner(self) -> Sequence | None:
        return None if self._owner is None else self._owner()

    @owner.setter
    def owner(self, sequence: Sequence | None) -> None:
        self._owner = None if sequence is None else weakref.ref(sequence)


class SequencePool:
    """The sequences of one model and its cache. Whoever calls it holds ``lock``."""

    def __init__(
        self, cache: CausalCache, contexts: ContextCache, rope_of: RopeOf, *, n_ctx: int, n_vocab: int, lock: Any
    ) -> None:
        self.lock = lock
        self.n_ctx = n_ctx
        self.n_vocab = n_vocab
        self._cache = cache
        self._contexts = contexts
        self._rope_of = rope_of
        self._slots = [_Slot(i) for i in range(MAX_SEQUENCES)]
        self._clock = 0

    def compute(self, parts: list[Part], want: DeviceOp | None = None) -> list[Array]:
        """Compute the next tokens of several sequences together, CHUNK in all at most.

        Returns the logits, (rows, vocab), of the parts one after the other. With ``want``, what it names of them: the
        best ids, (rows, k) I32, and for top-k their logits. Raises CacheFullError where the parts do not fit
        together; then, and when interrupted, the sequences are as before.
        """
        for part in parts:
            self.attach(part.sequence)
        slots = [_slot_of(part.sequence) for part in parts]
        self._make_room(sum(part.n for part in parts), slots)
        tokens: list[int] = []
        positions: list[int] = []
        outputs: list[int] = []
        for sequence, n, wanted in parts:
            at = sequence.n_computed
            tokens += sequence.ids[at : at + n]
            positions += range(at, at + n)
            outputs += range(len(tokens) - wanted, len(tokens))
        feeds = self._cache.place(np.array(positions), np.repeat([s.number for s in slots], [p.n for p in parts]))
        try:
            built = self._contexts.get((len(tokens), self._cache.sizes, len(outputs), want))
            feeds["tokens"], feeds["positions"] = np.array(tokens, np.int32), np.array(positions, np.int32)
            feeds["outputs"] = np.array(outputs or [0], np.int32)
            built.context.compute({built.inputs[name]: value for name, value in feeds.items()})
            results = [output.read() for output in built.outputs]
        except BaseException:  # the cells hold nothing that counts
            for slot in slots:
                self._cache.remove(slot.number, len(slot.tokens))
            raise
        self._clock += 1
        for (sequence, n, _), slot in zip(parts, slots, strict=True):
            slot.tokens += sequence.ids[sequence.n_computed : sequence.n_computed + n]
            slot.used = self._clock
            sequence.n_computed += n
        return results

    def extend(self, pairs: Iterable[tuple[Sequence, Iterable[int]]]) -> Array:
        """Add tokens to several sequences and compute them together: the logits after each, float32 (n, vocab).

        Raises InputTooLongError and TokenizerError; the sequences are then as before, as after an interruption.
        """
        with self.lock:
            added = [(sequence, len(sequence.ids), list(map(int, ids))) for sequence, ids in pairs]
            waiting = {sequence: row for row, (sequence, _, _) in enumerate(added)}
            if len(waiting) < len(added):
                raise GraphError("a sequence was given twice; expected each once, with all its tokens")
            logits: list[Array] = [np.empty(0)] * len(added)
            try:
                for sequence, before, ids in added:
                    self.check(ids, before)
                    sequence.ids += ids
                while waiting:
                    parts = self.plan(waiting)
                    done = [part for part in parts if part.outputs]
                    results = self.compute(parts)  # none where it was a piece of a long prompt
                    if [part.sequence for part in done] == [sequence for sequence, _, _ in added]:
                        return results[0]  # as they are: the logits of 8 sequences are 5 MB
                    for part, row in zip(done, results[0] if done else (), strict=True):
                        logits[waiting.pop(part.sequence)] = row
            except BaseException:
                for sequence, before, _ in added:
                    del sequence.ids[before:]
                    sequence.n_computed = min(sequence.n_computed, before)
                raise
            return np.stack(logits)

    def plan(self, sequences: Iterable[Sequence], spare: int = 0) -> list[Part]:
        """The next tokens of as many of these as the cache has room for: CHUNK in all, and of the first at least one.

        A sequence that is not there yet joins others only where ``spare`` more tokens would fit. Those with one token
        left go before prompts, which would make them wait for long.
        """
        together: list[Sequence] = []
        pending = 0
        for sequence in sequences:
            if len(together) == MAX_SEQUENCES:
                break
            self.attach(sequence, keep=together)
            sequence.n_computed = min(sequence.n_computed, len(sequence) - 1)
            pending += sequence.n_pending
            lengths = [len(s) for s in (*together, sequence)]
            wanted = pending + (spare if sequence.n_pending > 1 else 0)
            if together and not self._cache.fits(lengths, wanted):
                keep = sum(1 << _slot_of(s).number for s in (*together, sequence))
                if not self._cache.fits(lengths, wanted, keep):
                    break
            together.append(sequence)
        left, parts = CHUNK, []
        for sequence in sorted(together, key=lambda s: s.n_pending > 1):
            n = min(left, sequence.n_pending)
            if n:
                parts.append(Part(sequence, n, outputs=int(n == sequence.n_pending)))
                left -= n
        return parts

    def check(self, ids: list[int], before: int = 0) -> None:
        """Whether a sequence of ``before`` tokens can take these. In a step, all that take part would fail with it.

        Raises InputTooLongError for none at all, or more than the context holds; TokenizerError for what is no id.
        """
        n = before + len(ids)
        if not n:
            raise InputTooLongError("no tokens were given; expected 1 or more", hint="begin with tokenizer.bos")
        if n > self.n_ctx:
            raise InputTooLongError(
                f"{n} tokens were given; the context holds {self.n_ctx}",
                hint="load the model with a larger n_ctx, or shorten the text",
            )
        bad = next((i for i in ids if not 0 <= i < self.n_vocab), None)
        if bad is not None:
            raise TokenizerError(f"token id {bad} is outside the vocabulary of {self.n_vocab} tokens")

    def attach(self, sequence: Sequence, *, reuse: bool = True, keep: Iterable[Sequence] = ()) -> None:
        """Give a sequence a slot, with as much of its beginning in it as any other has.

        If all are taken, one that is not among ``keep`` loses its own.
        """
        slot = sequence._slot
        if slot is None or slot.owner is not sequence:
            if all(s.owner is not None for s in self._slots):
                kept = [s._slot for s in keep]
                self._evict(min((s for s in self._slots if s not in kept), key=lambda s: s.used))
            slot = self._slot_for(sequence.ids if reuse else [])
            slot.owner, slot.used = sequence, self._clock
            sequence._slot, sequence.n_computed = slot, len(slot.tokens)
        elif sequence.n_computed < len(slot.tokens):
            if not self._cache.can_resume(slot.number, sequence.n_computed):
                sequence.n_computed = 0  # a sliding window has passed
            self._trim(slot, sequence.n_computed)

    def detach(self, sequence: Sequence) -> None:
        """The slot is free for others; its tokens stay in it."""
        slot = sequence._slot
        if slot is not None and slot.owner is sequence:
            slot.owner = None
        sequence._slot, sequence.n_computed = None, 0

    def forget(self) -> None:
        """Drop what slots hold that nobody owns."""
        for slot in self._slots:
            if slot.owner is None:
                self._evict(slot)

    def shift(self, sequence: Sequence, keep: int, n: int) -> None:
        """See Sequence.shift. Tokens are computed anew where their cells are shared with a living sequence."""
        self.attach(sequence)
        slot, start = _slot_of(sequence), keep + n
        others = self._cache.sharing(slot.number, start)
        for other in self._slots:
            if others >> other.number & 1 and other.owner is None:
                self._evict(other)
        if start > sequence.n_computed or self._cache.sharing(slot.number, start):
            sequence.n_computed = min(sequence.n_computed, keep)
            self._trim(slot, sequence.n_computed)
        else:
            self._cache.remove(slot.number, keep, start)
            self._cache.shift(slot.number, start, -n, self._rope_of)
            del slot.tokens[keep:start]
            sequence.n_computed -= n
        del sequence.ids[keep:start]

    def _slot_for(self, ids: list[int]) -> _Slot:
        """A slot nobody owns, beginning as ``ids`` does."""
        common = {slot: _n_common(slot.tokens, ids) for slot in self._slots}
        idle = sorted((s for s in self._slots if s.owner is None), key=lambda s: (bool(s.tokens), s.used))
        likely = sorted((s for s in common if common[s]), key=lambda s: (-common[s], s.owner is not None))
        best = next((s for s in likely if self._cache.can_resume(s.number, common[s])), None)
        if best is None:
            self._trim(idle[0], 0)
            return idle[0]
        n, spare = common[best], next((s for s in idle if s is not best), None)
        if best.owner is None and (n == len(best.tokens) or spare is None or spare.tokens):
            self._trim(best, n)
            return best
        assert spare is not None  # best has an owner or spare is there
        self._cache.copy_prefix(best.number, spare.number, n)
        spare.tokens = best.tokens[:n]
        return spare

    def _make_room(self, n: int, keep: list[_Slot]) -> None:
        """Take slots out of the cache until ``n`` tokens fit: first those nobody owns, then those longest unused."""
        if self._cache.room() >= n:
            return
        others = [slot for slot in self._slots if slot.tokens and slot not in keep]
        for victim in sorted(others, key=lambda s: (s.owner is not None, s.used)):
            self._evict(victim)
            if self._cache.room() >= n:
                return

    def _evict(self, slot: _Slot) -> None:
        owner = slot.owner
        if owner is not None:
            owner._slot, owner.n_computed = None, 0
        slot.owner = None
        self._trim(slot, 0)

    def _trim(self, slot: _Slot, n: int) -> None:
        self._cache.remove(slot.number, n)
        del slot.tokens[n:]


def _slot_of(sequence: Sequence) -> _Slot:
    assert sequence._slot is not None  # it was attached
    return sequence._slot


def _n_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
