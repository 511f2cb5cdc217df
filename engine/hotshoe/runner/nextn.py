"""NextNDrafter: guesses the tokens of a text with the model's own drafting layer (nn.NextN)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.kvcache import Allocation, Cache, CausalCache, Sizes, part_of
from hotshoe.nn import Decoder
from hotshoe.nn.batch import Batch
from hotshoe.runner.contexts import Built, ContextCache
from hotshoe.runner.jobs import Generation, Job
from hotshoe_core import DType
from hotshoe_core.errors import CacheFullError

if TYPE_CHECKING:
    from hotshoe.runner.base import TextModule
    from hotshoe.runner.drafting import Hidden
    from hotshoe.runner.forward import TextForward
    from hotshoe.runner.items import Items
    from hotshoe.runner.slots import Slots
    from hotshoe_core import Backend

__all__ = ["NextNDrafter", "make_drafter"]

Array = np.ndarray[Any, Any]

_GRAPHS = 16  # one for each length of the context, which are few
_FEWEST_TOKENS = 1 << 15
_PART = 3  # of the vocabulary, whose first tokens are guessed
_LOOKED_AT = 256  # tokens of a text
_MOST_OTHERS = 16  # of these; with more that are not among the first of the vocabulary, all tokens are guessed


class NextNDrafter:
    """Guesses tokens in graphs of one row. These take cells of the text's slot, and give them back.

    The first third of a vocabulary has most tokens of most texts, as tokens are in the order in which they were merged,
    frequent ones first (benchmarks/NOTES.md has numbers). So a guess need not read all of the output matrix, which is
    often the largest weight (FR-Spec, Zhao et al. 2025, arXiv:2502.14856). If more than 16 of the last 256 tokens of
    a text are others, a guess uses the whole vocabulary.

    cache: the part of the model's cache that holds keys and values. lock: protects its records. n_vocab: tokens that
    the model has logits for. n_streams: of the positions that the model's RoPE takes; 0 for one position for each row.
    """

    def __init__(
        self, model: Decoder, backend: Backend, cache: CausalCache, lock: Any, *, n_vocab: int, n_streams: int
    ) -> None:
        self._model = model
        self._backend = backend
        self._cache = cache
        self._lock = lock
        self._n_vocab = n_vocab
        self._n_frequent = min(n_vocab, max(_FEWEST_TOKENS, n_vocab // _PART // 32 * 32))  # kernels compute 32 at once
        self._n_streams = n_streams
        self._contexts: ContextCache[tuple[Sizes, int]] = ContextCache(self._build, _GRAPHS)

    def draft_for(self, jobs: Sequence[Job[Any]], slots: Slots, n_ctx: int) -> None:
        """Guess the next tokens of the text that is written, if it is the only active job. Outside the lock."""
        with self._lock:
            active = [job for job in jobs if job.active]
            job = active[0] if len(active) == 1 else None
            if not isinstance(job, Generation) or (hidden := job.last_hidden) is None:
                return
            n = min(job.n_nextn, n_ctx - len(job.sequence))
            is_current = hidden.position == len(job.sequence) - 1  # not after an interrupt
            slot = slots.begin_draft(job.sequence) if n > 0 and is_current else None
        if slot is None:
            return
        begun = time.perf_counter()
        draft = self.draft(slot.number, job.sequence.items, hidden, n)
        with self._lock:
            slots.end_draft(slot)
            job.seconds += time.perf_counter() - begun
            job.guess_with(draft)

    def draft(self, slot: int, items: Items, hidden: Hidden, n: int) -> list[int]:
        """Return up to ``n`` tokens that may follow the last one of ``items``; fewer if the cache is full.

        slot: the slot whose cells hold all rows of the text but the last one; it is busy. Outside the lock; the caller
        has the engine's turn.
        """
        start, state = hidden
        token: Any = items.rows[start]
        found: list[int] = []
        others = sum(isinstance(row, int) and row >= self._n_frequent for row in items.rows[-_LOOKED_AT:])
        n_vocab = self._n_frequent if others <= _MOST_OTHERS else self._n_vocab
        try:
            for position in range(start, start + n):
                with self._lock:
                    feeds = self._cache.allocate([Allocation(slot, position, 1)], 1)
                    sizes = self._cache.sizes
                built = self._contexts.get((sizes, n_vocab))
                feeds["tokens"] = np.array([token], np.int32)
                feeds["positions"] = items.positions(position, 1, self._n_streams)
                feeds["hidden"] = state.reshape(1, -1)
                built.context.compute({tensor: feeds[name] for name, tensor in built.inputs.items()})
                best, hidden_after = (built.context.read_once(output) for output in built.outputs)
                token, state = int(best[0]), np.array(hidden_after)
                found.append(token)
                with self._lock:
                    self._cache.commit()
        except CacheFullError:
            pass
        finally:
            with self._lock:
                self._cache.rollback()
                self._cache.remove(slot, start)
        return found

    def close(self) -> None:
        """Close all graphs. Idempotent."""
        self._contexts.close()

    def _build(self, signature: tuple[Sizes, int]) -> Built:
        sizes, n_vocab = signature
        ctx = self._backend.new_context()
        shape: Sequence[int] = (self._n_streams, 1) if self._n_streams else (1,)
        batch = Batch(tokens=ctx.input("tokens", (1,), DType.I32), positions=ctx.input("positions", shape, DType.I32))
        hidden = ctx.input("hidden", (1, self._model.config.dim))
        views: Any = self._cache.views(ctx, 1, 1, sizes)[-1]  # of the state, which is not here, and of keys and values
        logits, after = self._model.draft(batch, hidden, views[1], n_vocab)
        results = logits.argmax(), after
        ctx.forward(*results)
        return Built(ctx, ctx.inputs, results)


def make_drafter(
    model: TextModule, backend: Backend, cache: Cache, forward: TextForward, lock: Any
) -> NextNDrafter | None:
    """Return what drafts with the model's own layer; None for a model without one. ``forward`` has built a graph."""
    cells = part_of(cache, CausalCache)
    if not isinstance(model, Decoder) or not model.nextn or cells is None:
        return None
    return NextNDrafter(model, backend, cells, lock, n_vocab=forward.n_vocab, n_streams=forward.n_streams)
