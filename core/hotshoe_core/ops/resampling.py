"""Pooling and interpolation: the same channels at other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from hotshoe_core.errors import ShapeError
from hotshoe_core.ops._windows import gather, integers, split_batch, window_sizes, windows
from hotshoe_core.ops.rules import F32, Array, Sizes, composite, require_float
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Rule, Shape, Tensor, constant

# Pooling


def _pool_rule(dims: int) -> Rule:
    def rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
        (x,) = args
        require_float(x)
        kernel = attrs["kernel_size"] = integers("kernel_size", attrs["kernel_size"], dims, least=1)
        if attrs["stride"] is None:
            attrs["stride"] = kernel
        for name, least in (("stride", 1), ("padding", 0)):
            attrs[name] = integers(name, attrs[name], dims, least=least)
        if "dilation" in attrs:
            attrs["dilation"] = integers("dilation", attrs["dilation"], dims, least=1)
        batch, (channels, *sizes) = split_batch(x.shape, dims)
        dilation = attrs.get("dilation", (1,) * dims)
        if any(2 * p > d * (k - 1) + 1 for p, k, d in zip(attrs["padding"], kernel, dilation)):
            raise ShapeError(f"padding is {attrs['padding']}; expected at most half the span of the kernel {kernel}")
        out = window_sizes(sizes, kernel, attrs["stride"], attrs["padding"], dilation, ceil=attrs["ceil_mode"])
        return (*batch, channels, *out), F32

    return rule


def _pool(dims: int, x: Tensor, reduce: Callable[[Tensor], Tensor], fill: float, **attrs: Any) -> Tensor:
    """Reduce the windows, (spots, taps, width), to (spots, width). Elements beyond the edge are ``fill``."""
    shape, _ = _pool_rule(dims)((x,), attrs)
    sizes, out = x.shape[-dims:], shape[-dims:]
    dilation = attrs.get("dilation", (1,) * dims)
    width = x.size // math.prod(sizes)  # n * channels
    rows = x.reshape(width, math.prod(sizes)).permute(1, 0)
    indices = windows(sizes, attrs["kernel_size"], attrs["stride"], attrs["padding"], dilation, out)
    return reduce(gather(rows, indices, fill)).permute(1, 0).reshape(*shape)


@composite(_pool_rule(1))
def max_pool1d(
    x: Tensor,
    *,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window, as ``torch.nn.functional.max_pool1d``.

    Shapes: x (n, channels, size) or (channels, size) gives (n, channels, out_size). stride: None is kernel_size.
    ceil_mode: include a last window that reaches beyond the padding. For a window with a NaN, or with -inf only, a
    backend may return another number than torch.
    """
    return _pool(
        1, x, lambda windows: windows.max(1), -math.inf,
        kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode,
    )  # fmt: skip


@composite(_pool_rule(2))
def max_pool2d(
    x: Tensor,
    *,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window, as ``torch.nn.functional.max_pool2d``.

    Shapes: x (n, channels, h, w) or (channels, h, w) gives (n, channels, out_h, out_w). The options, and the
    restriction for NaN and -inf, are those of ``max_pool1d``.
    """
    return _pool(
        2, x, lambda windows: windows.max(1), -math.inf,
        kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode,
    )  # fmt: skip


def _avg_pool(dims: int, x: Tensor, count_include_pad: bool, **attrs: Any) -> Tensor:
    shape, _ = _pool_rule(dims)((x,), attrs)
    counts = np.ones(1)
    axes = zip(x.shape[-dims:], shape[-dims:], attrs["kernel_size"], attrs["stride"], attrs["padding"])
    for size, n, k, s, p in axes:
        start = np.arange(n) * s - p
        beyond = p if count_include_pad else 0
        inside = np.minimum(start + k, size + beyond) - np.maximum(start, -beyond)
        counts = np.multiply.outer(counts, inside).reshape(-1)
    share = constant((1 / counts).astype(np.float32).reshape(-1, 1), "share")  # (spots, 1)
    return _pool(dims, x, lambda windows: windows.sum(1) * share, 0.0, **attrs)


@composite(_pool_rule(1))
def avg_pool1d(
    x: Tensor,
    *,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window, as ``torch.nn.functional.avg_pool1d``.

    Shapes: x (n, channels, size) or (channels, size) gives (n, channels, out_size). stride: None is kernel_size.
    ceil_mode: include a last window that reaches beyond the padding. count_include_pad: the zeros of the padding are
    part of the mean, as is torch's default.
    """
    return _avg_pool(
        1, x, count_include_pad,
        kernel_size=kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode,
    )  # fmt: skip


@composite(_pool_rule(2))
def avg_pool2d(
    x: Tensor,
    *,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window, as ``torch.nn.functional.avg_pool2d``.

    Shapes: x (n, channels, h, w) or (channels, h, w) gives (n, channels, out_h, out_w). The options are those of
    ``avg_pool1d``.
    """
    return _avg_pool(
        2, x, count_include_pad,
        kernel_size=kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode,
    )  # fmt: skip


# Interpolation


def _interpolate_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    require_float(x)
    if x.ndim < 2:
        raise ShapeError(f"x must be (..., h, w); got {x.ndim} axes")
    size = attrs["size"] = integers("size", attrs["size"], 2, least=1)
    mode = attrs["mode"]
    for option in ("align_corners", "antialias"):
        if attrs[option] and mode.startswith("nearest"):
            raise ShapeError(f"{option} cannot be used with mode {mode!r}; expected 'bilinear' or 'bicubic'")
    return (*x.shape[:-2], *size), F32


@composite(_interpolate_rule)
def interpolate(
    x: Tensor,
    *,
    size: Sizes,
    mode: Literal["nearest", "nearest-exact", "bilinear", "bicubic"] = "nearest",
    align_corners: bool = False,
    antialias: bool = False,
) -> Tensor:
    """Resize the last two axes, as ``torch.nn.functional.interpolate`` with ``size``.

    Shapes: x (..., h, w) gives (..., *size). align_corners: align the centres of the outermost elements, not their
    edges. antialias: widen the kernel when the size shrinks. The weights depend on the sizes only and act along one
    axis at a time, so the op is two products with small constant matrices; the nearest modes are a gather.
    """
    h, w = integers("size", size, 2, least=1)
    *leading, old_h, old_w = x.shape
    if mode.startswith("nearest"):
        indices = _nearest(old_h, h, mode)[:, None] * old_w + _nearest(old_w, w, mode)
        rows = x.reshape(-1, old_h * old_w).permute(1, 0)
        return gather(rows, indices.reshape(-1, 1)).reshape(h * w, -1).permute(1, 0).reshape(*leading, h, w)
    for old, new, other in ((old_w, w, old_h), (old_h, h, w)):
        weights = constant(_resampling(old, new, mode, align_corners, antialias), "resampling")  # (new, old)
        y = x.reshape(-1, old).matmul(weights, transpose=True, precision="full")
        x = y.reshape(-1, other, new).permute(0, 2, 1)  # the other axis last
    return x.reshape(*leading, h, w)


def _nearest(old: int, new: int, mode: str) -> Array:
    """For each of ``new`` elements, the index of the nearest of ``old``. Single precision decides ties as in torch."""
    position = np.arange(new, dtype=np.float32) + np.float32(0.5 if mode == "nearest-exact" else 0)
    return np.minimum(np.floor(position * (np.float32(old) / np.float32(new))).astype(np.int64), old - 1)


def _resampling(old: int, new: int, mode: str, align_corners: bool, antialias: bool) -> Array:
    """The (new, old) matrix of weights."""
    scale = old / new
    if align_corners:
        scale = (old - 1) / (new - 1) if new > 1 else 0.0
    position = np.arange(new) * scale if align_corners else (np.arange(new) + 0.5) * scale - 0.5
    if antialias:
        return _antialiased(old, new, mode, scale)
    weights = np.zeros((new, old))
    if mode == "bilinear":
        position = np.maximum(position, 0)
    first = np.floor(position).astype(np.int64)
    for tap in (0, 1) if mode == "bilinear" else (-1, 0, 1, 2):
        element = first + tap
        value = _tent(position - element) if mode == "bilinear" else _cubic(position - element, -0.75)
        np.add.at(weights, (np.arange(new), np.clip(element, 0, old - 1)), value)  # beyond the edge: repeat the edge
    return weights.astype(np.float32)


def _antialiased(old: int, new: int, mode: str, scale: float) -> Array:
    """The (new, old) matrix of a kernel that is widened by the scale, cut at the edges and normalised, as in Pillow."""
    wider = max(scale, 1.0)
    support = wider * (1 if mode == "bilinear" else 2)
    centre = (np.arange(new)[:, None] + 0.5) * scale
    element = np.arange(old)
    distance = (element + 0.5 - centre) / wider
    weights = _tent(distance) if mode == "bilinear" else _cubic(distance, -0.5)
    first, last = np.trunc(centre - support + 0.5), np.trunc(centre + support + 0.5)
    weights = np.where((element >= np.maximum(first, 0)) & (element < last), weights, 0)
    return (weights / weights.sum(1, keepdims=True)).astype(np.float32)


def _tent(x: Array) -> Array:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: Array, a: float) -> Array:
    """Cubic convolution (Keys 1981, doi:10.1109/TASSP.1981.1163711)."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))
