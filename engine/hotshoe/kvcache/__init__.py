"""What a model keeps between steps: keys and values, recurrent states, an encoder's output.

A model says what it needs with ``cache_spec()``, ``make_cache`` makes it, a model's layers call their views of it, and
the runner the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hotshoe.kvcache.base import (
    MAX_SEQUENCES,
    Allocation,
    AttentionView,
    Cache,
    CrossView,
    LayerView,
    RecurrentView,
    Sizes,
)
from hotshoe.kvcache.causal import CausalCache
from hotshoe.kvcache.cross import CrossCache
from hotshoe.kvcache.hybrid import HybridCache
from hotshoe.kvcache.recurrent import RecurrentCache, StateView
from hotshoe.kvcache.spec import AttentionSpec, CrossSpec, LayerSpec, RecurrentSpec
from hotshoe.kvcache.views import UncachedView
from hotshoe_core import DType
from hotshoe_core.errors import ModelDefinitionError

if TYPE_CHECKING:
    from hotshoe_core import Backend

__all__ = [
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
    "Allocation",
    "RecurrentCache",
    "RecurrentSpec",
    "RecurrentView",
    "Sizes",
    "StateView",
    "UncachedView",
    "make_cache",
]


def make_cache(
    backend: Backend,
    spec: Sequence[LayerSpec],
    *,
    n_tokens: int,
    n_sequences: int,
    n_batch: int,
    dtype: DType,
    n_scratch: int = 0,
) -> Cache:
    """The cache of a model whose layers need ``spec``: for ``n_sequences`` texts of ``n_tokens`` tokens.

    n_batch: the most rows of a step; n_scratch: the most rows of padding in one, where
    steps are not uniform. dtype: element type of keys and values
    (recurrent states are F32). Raises InsufficientMemoryError; DTypeError for a type whose blocks do not fit the heads;
    ModelDefinitionError for a spec that no layer keeps anything by.
    """
    for layer, entry in enumerate(spec):
        if not (entry is None or isinstance(entry, (AttentionSpec, RecurrentSpec, CrossSpec))):
            raise ModelDefinitionError(
                f"cache_spec: the entry of layer {layer} is a {type(entry).__name__}; "
                "expected AttentionSpec, RecurrentSpec, CrossSpec or None"
            )
    kinds = {type(entry) for entry in spec if entry is not None}
    if not kinds:
        raise ModelDefinitionError(
            "cache_spec: no layer keeps anything; a text model needs a cache",
            hint="a model that reads whole texts at once has task = Task.EMBEDDING or Task.RERANK",
        )
    parts: list[Cache] = []
    try:
        if RecurrentSpec in kinds:
            parts.append(RecurrentCache(backend, spec, n_sequences=n_sequences))
        if AttentionSpec in kinds:
            parts.append(
                CausalCache(
                    backend,
                    spec,
                    n_tokens=n_tokens,
                    n_sequences=n_sequences,
                    n_batch=n_batch,
                    n_scratch=n_scratch,
                    dtype=dtype,
                )
            )
        if CrossSpec in kinds:
            parts.append(CrossCache(backend, spec, n_sequences=n_sequences, dtype=dtype))
    except BaseException:
        for part in parts:
            part.close()
        raise
    return parts[0] if len(parts) == 1 else HybridCache(parts)
