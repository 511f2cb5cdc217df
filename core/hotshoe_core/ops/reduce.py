"""Reductions, softmax and norms."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe_core.dtypes import DType
from hotshoe_core.errors import ShapeError
from hotshoe_core.ops._rules import (
    F32,
    along_last,
    broadcast,
    composite,
    primitive,
    reduction,
    require_axis,
    require_float,
)
from hotshoe_core.tensor import Shape, Tensor

Array = np.ndarray[Any, Any]


@primitive(reduction)
def sum_(x: Array, *, axis: int = -1, keepdims: bool = False) -> Array:
    """Sum along one axis."""
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, dtype=np.float32))


@primitive(reduction)
def mean(x: Array, *, axis: int = -1, keepdims: bool = False) -> Array:
    """Arithmetic mean along one axis."""
    return np.asarray(np.mean(x, axis=axis, keepdims=keepdims, dtype=np.float32))


@composite(reduction)
def variance(x: Tensor, *, axis: int = -1, keepdims: bool = False) -> Tensor:
    """Population variance along one axis."""
    return (x - x.mean(axis, keepdims=True)).sqr().mean(axis, keepdims)


@primitive(along_last)
def cumsum(x: Array) -> Array:
    """Running sum along the last axis."""
    return np.cumsum(x, axis=-1, dtype=np.float32)


def _softmax_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, mask = args
    require_axis(x.shape, -1)
    require_float(x, mask)
    if mask is not None and broadcast(x.shape, mask.shape) != x.shape:
        raise ShapeError(f"mask {mask.shape} does not broadcast to x {x.shape}")
    return x.shape, F32


@primitive(_softmax_rule)
def softmax(x: Array, mask: Array | None = None, *, scale: float = 1.0) -> Array:
    """Softmax of ``scale * x + mask`` over the last axis. Every row needs one element that is not masked."""
    y = np.float32(scale) * x.astype(np.float32, copy=False)
    if mask is not None:
        y = y + mask
    y = np.exp(y - np.max(y, axis=-1, keepdims=True))
    return y / np.sum(y, axis=-1, keepdims=True)


def _norm_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, *vectors = args
    require_axis(x.shape, -1)
    require_float(x, *vectors)
    for v in vectors:
        if v is not None and v.shape != x.shape[-1:]:
            raise ShapeError(f"weight and bias must be {x.shape[-1:]}, as x's last axis; got {v.shape}")
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


@composite(along_last)
def l2_norm(x: Tensor, *, eps: float = 1e-12) -> Tensor:
    """``x / max(‖x‖₂, eps)`` over the last axis, as ``torch.nn.functional.normalize``."""
    return x / x.sqr().sum(keepdims=True).sqrt().clamp(min=eps)
