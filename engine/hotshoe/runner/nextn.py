"""NextNDrafter: guesses the tokens of a text with the model's own drafting layer (nn.NextN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe.kvcache import Allocation, CausalCache, Sizes
from hotshoe.nn.batch import Batch
from hotshoe.runner.contexts import Built, ContextCache
from hotshoe_core import DType
from hotshoe_core.errors import CacheFullError

if TYPE_CHECKING:
    from hotshoe.nn import Decoder
    from hotshoe.runner.items import Items
    from hotshoe_core import Backend

__all__ = ["Hidden", "NextNDrafter"]

Array = np.ndarray[Any, Any]

_GRAPHS = 16  # one for each length of the context, which are few


class Hidden(NamedTuple):
    """The model's hidden state, (dim,) F32, after the row before ``position``."""

    position: int
    state: Array


class NextNDrafter:
    """Guesses tokens in graphs of one row. These take cells of the text's slot, and give them back.

    cache: the part of the model's cache that holds keys and values. lock: protects its records. n_streams: of the
    positions that the model's RoPE takes; 0 for one position for each row.
    """

    def __init__(self, model: Decoder, backend: Backend, cache: CausalCache, lock: Any, *, n_streams: int) -> None:
        self._model = model
        self._backend = backend
        self._cache = cache
        self._lock = lock
        self._n_streams = n_streams
        self._contexts: ContextCache[Sizes] = ContextCache(self._build, _GRAPHS)

    def draft(self, slot: int, items: Items, hidden: Hidden, n: int) -> list[int]:
        """Return up to ``n`` tokens that may follow the last one of ``items``; fewer if the cache is full.

        slot: the slot whose cells hold all rows of the text but the last one. Outside the lock; the caller has the
        engine's turn.
        """
        start, state = hidden
        token: Any = items.rows[start]
        found: list[int] = []
        try:
            for position in range(start, start + n):
                with self._lock:
                    feeds = self._cache.allocate([Allocation(slot, position, 1)], 1)
                    built = self._contexts.get(self._cache.sizes)
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

    def _build(self, sizes: Sizes) -> Built:
        ctx = self._backend.new_context()
        shape: Sequence[int] = (self._n_streams, 1) if self._n_streams else (1,)
        batch = Batch(tokens=ctx.input("tokens", (1,), DType.I32), positions=ctx.input("positions", shape, DType.I32))
        hidden = ctx.input("hidden", (1, self._model.config.dim))
        *_, (_, view) = self._cache.views(ctx, 1, 1, sizes)
        logits, after = self._model.draft(batch, hidden, view)
        results = logits.argmax(), after
        ctx.forward(*results)
        return Built(ctx, ctx.inputs, results)
