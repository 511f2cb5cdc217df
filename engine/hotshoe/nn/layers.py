"""The small modules models are made of."""

from __future__ import annotations

from hotshoe.nn.module import Module, parameter
from hotshoe_core import Tensor, ops

__all__ = ["Embedding", "LayerNorm", "Linear", "RMSNorm"]


class Linear(Module):
    """``x @ weight.T + bias``: (..., in) to (..., out)."""

    weight: Tensor = parameter("weight", use="linear")
    bias: Tensor | None = parameter("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        y = ops.linear(x, self.weight)
        return y if self.bias is None else y + self.bias


class Embedding(Module):
    """Rows by index: (...) integers to (..., dim)."""

    weight: Tensor = parameter("weight", use="take")

    def __call__(self, indices: Tensor) -> Tensor:
        return self.weight.take(indices)


class LayerNorm(Module):
    """Layer normalisation over the last axis; ``config.norm_eps``."""

    weight: Tensor = parameter("weight", use="mul")
    bias: Tensor | None = parameter("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self.weight, self.bias, eps=self.config.norm_eps)


class RMSNorm(Module):
    """Root mean square normalisation over the last axis; ``config.norm_eps``."""

    weight: Tensor = parameter("weight", use="mul")

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, eps=self.config.norm_eps)
