"""Building blocks for models."""

from hotshoe.nn.binder import bind
from hotshoe.nn.layers import Embedding, LayerNorm, Linear, RMSNorm
from hotshoe.nn.module import Module, layers, parameter, part, tensor
from hotshoe.nn.rope import rope_from

__all__ = [
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "RMSNorm",
    "bind",
    "layers",
    "parameter",
    "part",
    "rope_from",
    "tensor",
]
