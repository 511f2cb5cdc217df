"""Reductions, softmax and norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe_core.errors import ShapeError
from hotshoe_core.ops.rules import (
    F32,
    I32,
    Array,
    along_last,
    broadcast,
    broadcast_rows,
    by_row,
    composite,
    primitive,
    reduction,
    require_axis,
    require_eps,
    require_finite,
    require_float,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Axis, Shape, Tensor


@primitive(reduction)
def sum_(x: Array, *, axis: Axis = -1, keepdims: bool = False) -> Array:
    """Sum along ``axis``: one, several or all (None)."""
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=np.float32))


@primitive(reduction)
def mean(x: Array, *, axis: Axis = -1, keepdims: bool = False) -> Array:
    """Arithmetic mean along ``axis``: one, several or all (None)."""
    return np.asarray(np.mean(x, axis=axis, keepdims=keepdims, dtype=np.float32))


@primitive(reduction)
def max_(x: Array, *, axis: Axis = -1, keepdims: bool = False) -> Array:
    """The largest element along ``axis``: one, several or all (None); NaN if one is NaN."""
    return np.asarray(np.max(x, axis=axis, keepdims=keepdims))


@composite(reduction)
def min_(x: Tensor, *, axis: Axis = -1, keepdims: bool = False) -> Tensor:
    """The smallest element along ``axis``: one, several or all (None); NaN if one is NaN."""
    return -(-x).max(axis, keepdims)


@composite(lambda args, attrs: (along_last(args, attrs)[0][:-1], I32))
def argmin(x: Tensor) -> Tensor:
    """Index of the smallest element along the last axis: the first one if several are equal. NaN counts as smallest."""
    return (-x).argmax()


@composite(reduction)
def variance(x: Tensor, *, axis: Axis = -1, keepdims: bool = False) -> Tensor:
    """Population variance along ``axis``: one, several or all (None)."""
    return (x - x.mean(axis, keepdims=True)).sqr().mean(axis, keepdims)


@primitive(along_last)
def cumsum(x: Array) -> Array:
    """Running sum along the last axis."""
    return np.cumsum(x, axis=-1, dtype=np.float32)


@by_row(broadcast_rows)
def _softmax_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, mask = args
    require_finite(attrs, "scale")
    require_axis(x.shape, -1)
    require_float(x, mask)
    if mask is not None and broadcast(x.shape, mask.shape) != x.shape:
        raise ShapeError(f"mask {mask.shape} does not broadcast to x {x.shape}")
    return x.shape, F32


@primitive(_softmax_rule)
def softmax(x: Array, mask: Array | None = None, *, scale: float = 1.0) -> Array:
    """Softmax of ``scale * x + mask`` over the last axis. Every row must have an element that is not masked."""
    y = np.float32(scale) * x.astype(np.float32, copy=False)
    if mask is not None:
        y = y + mask
    y = np.exp(y - np.max(y, axis=-1, keepdims=True))
    return y / np.sum(y, axis=-1, keepdims=True)


@by_row(broadcast_rows)
def _norm_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, *vectors = args
    require_eps(attrs)
    require_axis(x.shape, -1)
    require_float(x, *vectors)
    for v in vectors:
        if v is not None and v.shape != x.shape[-1:]:
            raise ShapeError(f"weight and bias must be {x.shape[-1:]}, the size of x's last axis; got {v.shape}")
    return x.shape, F32


@composite(_norm_rule)
def rms_norm(x: Tensor, weight: Tensor | None = None, *, eps: float) -> Tensor:
    """``x / √(mean(x²) + eps) * weight`` over the last axis (Zhang & Sennrich 2019, arXiv:1910.07467)."""
    y = x * (x.sqr().mean(keepdims=True) + eps).rsqrt()
    return y if weight is None else y * weight


@composite(_norm_rule)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, eps: float) -> Tensor:
    """``(x - mean) / √(variance + eps) * weight + bias`` over the last axis (Ba et al. 2016, arXiv:1607.06450)."""
    centred = x - x.mean(keepdims=True)
    y = centred * (centred.sqr().mean(keepdims=True) + eps).rsqrt()
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


@by_row(broadcast_rows)
def _l2_norm_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    require_eps(attrs)
    return along_last(args, attrs)


@composite(_l2_norm_rule)
def l2_norm(x: Tensor, *, eps: float = 1e-12) -> Tensor:
    """``x / max(‖x‖₂, eps)`` over the last axis, as ``torch.nn.functional.normalize``."""
    return x / x.sqr().sum(keepdims=True).sqrt().clamp(min=eps)


def _group_norm_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, *vectors = args
    require_eps(attrs)
    require_float(x, *vectors)
    if x.ndim < 2:
        raise ShapeError("x must be (n, channels, *spatial)")
    if attrs["n_groups"] < 1 or x.shape[1] % attrs["n_groups"]:
        raise ShapeError(f"{x.shape[1]} channels do not divide into {attrs['n_groups']} groups")
    for v in vectors:
        if v is not None and v.shape != x.shape[1:2]:
            raise ShapeError(f"weight and bias must be {x.shape[1:2]}, one number for each channel of x; got {v.shape}")
    return x.shape, F32


@composite(_group_norm_rule)
def group_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, n_groups: int, eps: float = 1e-5
) -> Tensor:
    """Normalise each group of channels of each sample over its channels and space (Wu & He 2018, arXiv:1803.08494).

    Shapes: x (n, channels, *spatial), weight and bias (channels,), as ``torch.nn.functional.group_norm``.
    """
    y = layer_norm(x.reshape(x.shape[0], n_groups, -1), eps=eps).reshape(*x.shape)
    by_channel = (-1, *(1,) * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(*by_channel)
    return y if bias is None else y + bias.reshape(*by_channel)
