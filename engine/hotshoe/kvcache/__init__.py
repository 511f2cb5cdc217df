"""Key/value caches. A model calls ``update`` of a layer's view; the runner calls the rest."""

from hotshoe.kvcache.base import AttentionView, LayerCache, LayerInputs, RecurrentView, UncachedView
from hotshoe.kvcache.causal import CausalCache
from hotshoe.kvcache.cells import MAX_SEQUENCES
from hotshoe.kvcache.spec import AttentionSpec, CrossSpec, LayerSpec, RecurrentSpec

__all__ = [
    "MAX_SEQUENCES",
    "AttentionSpec",
    "AttentionView",
    "CausalCache",
    "CrossSpec",
    "LayerCache",
    "LayerInputs",
    "LayerSpec",
    "RecurrentSpec",
    "RecurrentView",
    "UncachedView",
]
