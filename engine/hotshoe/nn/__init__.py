"""Building blocks for models."""

from hotshoe.nn.binder import bind
from hotshoe.nn.layers import Embedding, LayerNorm, Linear, RMSNorm
from hotshoe.nn.module import Module, layers, parameter, part, tensor

__all__ = ["Embedding", "LayerNorm", "Linear", "Module", "RMSNorm", "bind", "layers", "parameter", "part", "tensor"]
