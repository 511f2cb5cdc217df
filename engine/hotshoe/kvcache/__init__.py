"""Key/value caches. A model calls ``update`` of a layer's view; the runner calls the rest."""

from hotshoe.kvcache.base import CacheInputs, LayerCache
from hotshoe.kvcache.causal import CausalCache

__all__ = ["CacheInputs", "CausalCache", "LayerCache"]
