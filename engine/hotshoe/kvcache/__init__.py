"""Caches: what a model keeps between graphs. Keys and values, recurrent states, an encoder's output.

A model's ``cache_spec()`` lists what each layer keeps, and ``make_cache`` makes the cache for it. The model's layers
call their views of the cache; the runner calls the cache itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotshoe.kvcache.base import (
    CHECKPOINT_BYTES,
    MAX_SEQUENCES,
    Allocation,
    AttentionView,
    Cache,
    CrossView,
    LayerView,
    LayerViews,
    RecurrentView,
    Sizes,
)
from hotshoe.kvcache.causal import CausalCache
from hotshoe.kvcache.cross import CrossCache, most_attended
from hotshoe.kvcache.hybrid import HybridCache, part_of
from hotshoe.kvcache.recurrent import RecurrentCache, StateView
from hotshoe.kvcache.spec import AttentionSpec, CrossSpec, LayerSpec, RecurrentSpec, parts_of
from hotshoe.kvcache.views import UncachedView
from hotshoe_core import DType
from hotshoe_core.errors import ModelDefinitionError, ModelError

if TYPE_CHECKING:
    from hotshoe_core import Backend

__all__ = [
    "CHECKPOINT_BYTES",
    "MAX_SEQUENCES",
    "AttentionSpec",
    "AttentionView",
    "Cache",
    "CausalCache",
    "CrossCache",
    "CrossSpec",
    "CrossView",
    "HybridCache",
    "LayerSpec",
    "LayerView",
    "LayerViews",
    "Allocation",
    "RecurrentCache",
    "RecurrentSpec",
    "RecurrentView",
    "Sizes",
    "StateView",
    "UncachedView",
    "make_cache",
    "most_attended",
    "part_of",
]

_MAX_CELLS = 2**31 - 1  # graphs number them in I32


def make_cache(
    backend: Backend,
    spec: Sequence[LayerSpec],
    *,
    n_tokens: int,
    n_sequences: int,
    n_ubatch: int,
    dtype: DType,
    n_scratch: int = 0,
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    n_encoded: int = 0,
) -> Cache:
    """Make the cache for a model's ``cache_spec()``: for ``n_sequences`` texts of ``n_tokens`` tokens each.

    n_ubatch: the most rows of a graph. n_scratch: the most rows of padding in a graph, unless all sequences of a graph
    must have the same length. dtype: the element type of keys and values; recurrent states are F32.
    checkpoint_bytes: the room for states after earlier tokens, see RecurrentCache. n_encoded: the rows of encoders'
    outputs to which layers attend; 0 if there is no encoder, so that layers with a CrossSpec keep nothing. Raises
    InsufficientMemoryError; DTypeError for a type whose blocks do not fit the heads; ModelError for too many
    cells; ModelDefinitionError for an invalid spec, or if no layer keeps anything.
    """
    parts = parts_of(spec)
    for part, kept in parts.items():
        if isinstance(kept, AttentionSpec) and kept.both_sides:
            raise ModelDefinitionError(
                f"cache_spec: layer {part} attends to later tokens (both_sides), which a text model does not have yet",
                hint="leave both_sides out",
            )
    kinds = {type(kept) for kept in parts.values()}
    if not kinds:
        raise ModelDefinitionError(
            "cache_spec: no layer keeps anything; a text model needs a cache",
            hint="a model that reads whole texts at once has task = Task.EMBEDDING or Task.RERANK",
        )
    if n_tokens * n_sequences > _MAX_CELLS:
        raise ModelError(
            f"a cache of {n_sequences} texts of {n_tokens} tokens has {n_tokens * n_sequences} cells; expected at most "
            f"{_MAX_CELLS}",
            hint="use a smaller n_sequences or n_ctx",
        )
    caches: list[Cache] = []
    try:
        if RecurrentSpec in kinds:
            caches.append(RecurrentCache(backend, spec, n_sequences=n_sequences, checkpoint_bytes=checkpoint_bytes))
        if AttentionSpec in kinds:
            caches.append(
                CausalCache(
                    backend,
                    spec,
                    n_tokens=n_tokens,
                    n_sequences=n_sequences,
                    n_ubatch=n_ubatch,
                    n_scratch=n_scratch,
                    dtype=dtype,
                )
            )
        if CrossSpec in kinds and n_encoded:
            caches.append(CrossCache(backend, spec, n_rows=n_encoded, dtype=dtype))
    except BaseException:
        for cache in caches:
            cache.close()
        raise
    return caches[0] if len(caches) == 1 else HybridCache(caches)
