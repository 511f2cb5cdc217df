"""The smallest modules: linear layers, convolutions, embeddings and norms."""

from __future__ import annotations

from typing import ClassVar

from hotshoe.nn.module import Module, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.errors import ShapeError, WeightsError
from hotshoe_core.tensors.tensor import Shape

__all__ = [
    "Conv2D",
    "Conv3D",
    "Embedding",
    "LayerNorm",
    "LayerNormByHead",
    "Linear",
    "Norm",
    "RMSNorm",
    "UnweightedRMSNorm",
    "WideRMSNorm",
]


class Linear(Module):
    """``x @ weight.T * scale + bias``: (..., in) to (..., out)."""

    weight: Tensor = tensor("weight", use="linear")
    scale: Tensor | None = tensor("scale", use="mul", optional=True, shape=lambda c, i: (1,))
    """A factor of the whole matrix, as files with 4-bit and 8-bit floats have it."""
    bias: Tensor | None = tensor("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        y = ops.linear(x, self.weight)
        if self.scale is not None:
            y = y * self.scale
        if self.bias is None:
            return y
        return y + _require_shape(self.bias, self.weight.shape[:1], "one element for each row of the weight")


class Conv2D(Module):
    """Convolution over height and width: (n, channels, h, w) to (n, out, out_h, out_w).

    A subclass sets the options: ``class Patches(Conv2D): stride = 14``.
    """

    stride: ClassVar[int | tuple[int, int]] = 1
    padding: ClassVar[int | tuple[int, int]] = 0
    dilation: ClassVar[int | tuple[int, int]] = 1
    groups: ClassVar[int] = 1
    weight: Tensor = tensor("weight", use="conv2d")  # (out, channels / groups, kernel_h, kernel_w)
    bias: Tensor | None = tensor("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.conv2d(
            x, self.weight, self.bias,
            stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups,
        )  # fmt: skip


class Conv3D(Module):
    """Convolution over time, height and width: (n, channels, t, h, w) to (n, out, out_t, out_h, out_w).

    A subclass sets the options, as for Conv2D.
    """

    stride: ClassVar[int | tuple[int, int, int]] = 1
    padding: ClassVar[int | tuple[int, int, int]] = 0
    dilation: ClassVar[int | tuple[int, int, int]] = 1
    groups: ClassVar[int] = 1
    weight: Tensor = tensor("weight", use="conv3d")  # (out, channels / groups, kernel_t, kernel_h, kernel_w)
    bias: Tensor | None = tensor("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.conv3d(
            x, self.weight, self.bias,
            stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups,
        )  # fmt: skip


class Embedding(Module):
    """Look up rows of a matrix: integers (...) to (..., dim)."""

    weight: Tensor = tensor("weight", use="take")
    scale: Tensor | None = tensor("scale", use="mul", optional=True, shape=lambda c, i: (1,))

    def __call__(self, indices: Tensor) -> Tensor:
        rows = self.weight.take(indices)
        return rows if self.scale is None else rows * self.scale

    def require_rows(self, n: int, why: str) -> None:
        """Raise WeightsError if the matrix has fewer than ``n`` rows. ``why``: the reason, for the message."""
        if self.weight.shape[0] < n:
            raise WeightsError(
                f"{self.weight.name} has {self.weight.shape[0]} rows; expected {n} or more: {why}",
                hint="the vocabulary and the weights in the file belong to different models: convert the model again",
            )


class Norm(Module):
    """Base class of norms: (..., dim) to (..., dim)."""

    @property
    def eps(self) -> float:
        """The number that is added to the variance or to the mean square."""
        eps: float = self.config.norm_eps
        return eps

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class LayerNorm(Norm):
    """Layer normalisation over the last axis, with ``config.norm_eps``."""

    weight: Tensor = tensor("weight", use="mul")
    bias: Tensor | None = tensor("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        weight = _require_shape(self.weight, x.shape[-1:], "it normalises the last axis")
        bias = None if self.bias is None else _require_shape(self.bias, x.shape[-1:], "its weight has that shape")
        return ops.layer_norm(x, weight, bias, eps=self.eps)


class LayerNormByHead(Norm):
    """Layer normalisation over the last axis, with weights of its own for each head: (..., heads, head_dim)."""

    weight: Tensor = tensor("weight", use="mul")

    def __call__(self, x: Tensor) -> Tensor:
        weight = _require_shape(self.weight, x.shape[-2:], "it normalises each head")
        return ops.layer_norm(x, eps=self.eps) * weight


class RMSNorm(Norm):
    """Root mean square normalisation over the last axis, with ``config.norm_eps``."""

    weight: Tensor = tensor("weight", use="mul")

    def __call__(self, x: Tensor) -> Tensor:
        weight = _require_shape(self.weight, x.shape[-1:], "it normalises the last axis")
        return ops.rms_norm(x, weight, eps=self.eps)


class WideRMSNorm(Norm):
    """Root mean square normalisation over the last two axes together: all heads of a query or key."""

    weight: Tensor = tensor("weight", use="mul")

    def __call__(self, x: Tensor) -> Tensor:
        flat = x.reshape(*x.shape[:-2], -1)
        weight = _require_shape(self.weight, flat.shape[-1:], "it normalises all heads together")
        return ops.rms_norm(flat, weight, eps=self.eps).reshape(*x.shape)


class UnweightedRMSNorm(Norm):
    """Root mean square normalisation over the last axis, without a weight."""

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, eps=self.eps)


def _require_shape(weight: Tensor, shape: Shape, why: str) -> Tensor:
    """Return ``weight`` if it has this shape. Otherwise broadcasting an axis of size 1 would give wrong results."""
    if weight.shape != shape:
        raise ShapeError(f"{weight.name} has shape {list(weight.shape)}; expected {list(shape)}: {why}")
    return weight
