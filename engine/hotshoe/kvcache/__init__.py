"""Key/value caches. A model calls ``update`` of a layer's view; the runner calls the rest."""

from hotshoe.kvcache.base import LayerCache, LayerInputs
from hotshoe.kvcache.causal import CausalCache
from hotshoe.kvcache.cells import MAX_SEQUENCES

__all__ = ["MAX_SEQUENCES", "CausalCache", "LayerCache", "LayerInputs"]
