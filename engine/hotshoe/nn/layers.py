"""The small modules models are made of."""

from __future__ import annotations

from typing import ClassVar

from hotshoe.nn.module import Module, parameter
from hotshoe_core import Tensor, ops
from hotshoe_core.errors import ShapeError, WeightsError
from hotshoe_core.tensors.tensor import Shape

__all__ = ["Conv2D", "Conv3D", "Embedding", "LayerNorm", "Linear", "RMSNorm"]


class Linear(Module):
    """``x @ weight.T + bias``: (..., in) to (..., out)."""

    weight: Tensor = parameter("weight", use="linear")
    bias: Tensor | None = parameter("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        y = ops.linear(x, self.weight)
        if self.bias is None:
            return y
        return y + _exactly(self.bias, self.weight.shape[:1], "the weight has as many rows")


class Conv2D(Module):
    """Convolution over height and width: (n, channels, h, w) to (n, out, out_h, out_w).

    A subclass says how: ``class Patches(Conv2D): stride = 14``.
    """

    stride: ClassVar[int | tuple[int, int]] = 1
    padding: ClassVar[int | tuple[int, int]] = 0
    dilation: ClassVar[int | tuple[int, int]] = 1
    groups: ClassVar[int] = 1
    weight: Tensor = parameter("weight", use="conv2d")  # (out, channels / groups, kernel_h, kernel_w)
    bias: Tensor | None = parameter("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.conv2d(
            x, self.weight, self.bias,
            stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups,
        )  # fmt: skip


class Conv3D(Module):
    """Convolution over time, height and width: (n, channels, t, h, w) to (n, out, out_t, out_h, out_w)."""

    stride: ClassVar[int | tuple[int, int, int]] = 1
    padding: ClassVar[int | tuple[int, int, int]] = 0
    dilation: ClassVar[int | tuple[int, int, int]] = 1
    groups: ClassVar[int] = 1
    weight: Tensor = parameter("weight", use="conv3d")  # (out, channels / groups, kernel_t, kernel_h, kernel_w)
    bias: Tensor | None = parameter("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.conv3d(
            x, self.weight, self.bias,
            stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups,
        )  # fmt: skip


class Embedding(Module):
    """Rows by index: (...) integers to (..., dim)."""

    weight: Tensor = parameter("weight", use="take")

    def __call__(self, indices: Tensor) -> Tensor:
        return self.weight.take(indices)

    def require_rows(self, n: int, why: str) -> None:
        """Raise WeightsError if there are fewer rows: an index would lead beyond them."""
        if self.weight.shape[0] < n:
            raise WeightsError(
                f"{self.weight.name} has {self.weight.shape[0]} rows; expected {n} or more: {why}",
                hint="the vocabulary and the weights in the file are of different models: convert it again",
            )


class LayerNorm(Module):
    """Layer normalisation over the last axis; ``config.norm_eps``."""

    weight: Tensor = parameter("weight", use="mul")
    bias: Tensor | None = parameter("bias", use="add", optional=True)

    def __call__(self, x: Tensor) -> Tensor:
        weight, why = _exactly(self.weight, x.shape[-1:], "it normalises the last axis"), "its weight has that shape"
        bias = None if self.bias is None else _exactly(self.bias, x.shape[-1:], why)
        return ops.layer_norm(x, weight, bias, eps=self.config.norm_eps)


class RMSNorm(Module):
    """Root mean square normalisation over the last axis; ``config.norm_eps``."""

    weight: Tensor = parameter("weight", use="mul")

    def __call__(self, x: Tensor) -> Tensor:
        weight = _exactly(self.weight, x.shape[-1:], "it normalises the last axis")
        return ops.rms_norm(x, weight, eps=self.config.norm_eps)


def _exactly(weight: Tensor, shape: Shape, why: str) -> Tensor:
    """The weight, if it has this shape: an axis of size 1 would be broadcast, and the numbers silently wrong."""
    if weight.shape != shape:
        raise ShapeError(f"{weight.name} is {list(weight.shape)}; expected {list(shape)}: {why}")
    return weight
