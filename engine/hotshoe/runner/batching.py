"""Continuous batching: every step computes the next tokens of all generations that want one, in one graph.

There is no thread. Whoever pulls a token runs the step for all, under the pool's lock; the others find theirs ready.
So threads that each read a stream share the work, and a program that reads several in turn does too.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hotshoe.sampling import Sampled, Sampler

if TYPE_CHECKING:
    from hotshoe.runner.sequences import Sequence, SequencePool
    from hotshoe.sampling import DeviceOp

__all__ = ["Batcher", "FinishReason", "Generation", "Token"]

FinishReason = Literal["stop", "length", "context", "cancelled"]
"""Why a generation ended: a stop token, stop text or finished grammar; max_tokens; a full context; or it was left."""

_AHEAD = 8  # tokens a generation may be ahead of its reader, because others pulled
_SPARE = 64  # room that must be left when a text joins others, or it would soon be thrown out again


class Token(NamedTuple):
    """One that was chosen, and the seconds of the steps that led to it."""

    sampled: Sampled
    seconds: float


class Generation:
    """One text on its way: what is to be computed, how to choose, and the tokens nobody has fetched yet."""

    def __init__(self, sequence: Sequence, sampler: Sampler, stops: frozenset[int]) -> None:
        self.sequence = sequence
        self.sampler = sampler
        self.stops = stops
        self.n_prompt = len(sequence.ids)
        self.n_cached: int | None = None  # tokens of the prompt that were there already; None before the first step
        self.n_tokens = 0
        self.ready: deque[Token] = deque()
        self.seconds = 0.0  # of steps since the last token
        self.finish: FinishReason | None = None
        self.error: BaseException | None = None

    @property
    def wants(self) -> bool:
        """Whether the next step is for this one too."""
        return self.finish is None and self.error is None and len(self.ready) < _AHEAD


class Batcher:
    """The generations of one model, in the order they came."""

    def __init__(self, pool: SequencePool, *, on_device: bool) -> None:
        self._pool = pool
        self._on_device = on_device  # top-k there too: pays where logits would have to cross a bus
        self._active: list[Generation] = []

    def add(self, generation: Generation) -> None:
        """Let it take part in the steps from now on. Idempotent."""
        with self._pool.lock:
            if generation not in self._active:
                self._active.append(generation)

    def remove(self, generation: Generation) -> None:
        """It takes part no more, and its place in the cache is free for others. Idempotent."""
        with self._pool.lock:
            if generation in self._active:
                self._active.remove(generation)
                self._pool.detach(generation.sequence)

    def next(self, generation: Generation) -> Token | None:
        """Its next token; None at the end, which ``generation.finish`` explains. Raises what went wrong with it."""
        with self._pool.lock:
            self.add(generation)
            while not generation.ready:
                if generation.error is not None:
                    raise generation.error
                if generation.finish is not None:
                    return None
                self._step(generation)
            return generation.ready.popleft()

    def _step(self, generation: Generation) -> None:
        """Compute once: the next token of all that have their prompts behind them, and a piece of prompts."""
        start = time.perf_counter()
        for g in [g for g in self._active if g.finish == "cancelled"]:
            self.remove(g)
        for g in self._active:
            if g.wants:
                self._prepare(g)
        if not generation.wants:
            return  # it has ended
        # the oldest first, but before them the one whose reader waits
        wanting = {g.sequence: g for g in sorted(self._active, key=lambda g: g is not generation) if g.wants}
        parts = self._pool.plan(wanting, _SPARE)
        chosen = [wanting[part.sequence] for part in parts if part.outputs]
        want = self._want(chosen)
        results = self._pool.compute(parts, want)
        sampled: list[Sampled | None] = []
        for row, g in enumerate(chosen):
            sampled.append(_guarded(g, want, [r[row] for r in results]))
        seconds = time.perf_counter() - start
        for part in parts:
            wanting[part.sequence].seconds += seconds
        for g, token in zip(chosen, sampled, strict=True):
            if token is not None:
                self._take(g, token)

    def _prepare(self, g: Generation) -> None:
        """Room in the context for one more token, and a place in the cache."""
        sequence, shift = g.sequence, g.sampler.params.context_shift
        if len(sequence) > self._pool.n_ctx:
            if shift is None:
                g.finish = "context"
                return
            self._pool.shift(sequence, shift, max(1, (self._pool.n_ctx - shift) // 2))
        if g.n_cached is None:
            self._pool.attach(sequence)
            g.n_cached = min(sequence.n_computed, g.n_prompt - 1)

    def _want(self, chosen: list[Generation]) -> DeviceOp | None:
        """What the device may compute instead of handing over all logits, if it serves everybody."""
        ops = {g.sampler.device_op for g in chosen}
        op = ops.pop() if len(ops) == 1 else None
        return op if op is not None and (op.op == "argmax" or self._on_device) else None

    def _take(self, g: Generation, sampled: Sampled) -> None:
        params = g.sampler.params
        if sampled.id in g.stops:
            g.finish = "stop"
            return
        try:
            g.sampler.accept(sampled.id)
        except Exception as error:  # its reader's business, not that of whoever ran the step
            g.error = error
            return
        g.ready.append(Token(sampled, g.seconds))
        g.seconds = 0.0
        g.n_tokens += 1
        g.sequence.ids.append(sampled.id)
        if g.sampler.complete:
            g.finish = "stop"
        elif params.max_tokens is not None and g.n_tokens >= params.max_tokens:
            g.finish = "length"


def _guarded(g: Generation, want: DeviceOp | None, rows: list[Any]) -> Sampled | None:
    try:
        if want is None:
            return g.sampler.sample(rows[0])
        if want.op == "argmax":
            return Sampled(int(rows[0]))
        return g.sampler.sample_from(*rows)
    except Exception as error:
        g.error = error
        return None
