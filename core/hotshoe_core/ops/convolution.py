"""Convolutions in torch's layout: channels before the spatial axes, the batch axis first or absent.

The elements that a window reads are known when the graph is built. So each convolution is a gather and a matrix
product, and a backend that has ``take`` and ``linear`` has every convolution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotshoe_core.errors import ShapeError
from hotshoe_core.ops._windows import gather, integers, split_batch, transposed_windows, window_sizes, windows
from hotshoe_core.ops.matrix import linear
from hotshoe_core.ops.rules import F32, Sizes, composite, require_float
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Rule, Shape, Tensor


def _geometry(attrs: dict[str, Any], n: int) -> tuple[Shape, Shape, Shape]:
    """Normalise stride, padding and dilation to one integer for each axis, and groups; returns the first three."""
    for name, least in (("stride", 1), ("padding", 0), ("dilation", 1)):
        attrs[name] = integers(name, attrs[name], n, least=least)
    if "groups" in attrs:
        (attrs["groups"],) = integers("groups", attrs["groups"], 1, least=1)
    return attrs["stride"], attrs["padding"], attrs["dilation"]


# Columns


def _im2col_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    require_float(x)
    kernel = attrs["kernel_size"]
    n = len(kernel) if isinstance(kernel, Sequence) else 0
    if not 1 <= n <= 3:
        raise ShapeError(f"kernel_size is {kernel!r}; expected 1 to 3 integers, one for each axis")
    kernel = attrs["kernel_size"] = integers("kernel_size", attrs["kernel_size"], n, least=1)
    batch, (channels, *sizes) = split_batch(x.shape, n)
    out = window_sizes(sizes, kernel, *_geometry(attrs, n))
    return (*batch, *out, channels * math.prod(kernel)), F32


@composite(_im2col_rule)
def im2col(
    x: Tensor, *, kernel_size: Sequence[int], stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1
) -> Tensor:
    """The windows that a kernel slides over, each as one row; zeros beyond the edge.

    Shapes: x (n, channels, *sizes) or (channels, *sizes), with as many spatial axes (1 to 3) as kernel_size has
    elements, gives (n, *out_sizes, channels * prod(kernel_size)), where out_size is ``(size + 2 * padding - dilation *
    (kernel - 1) - 1) // stride + 1``. This is ``torch.nn.functional.unfold`` with the columns last, so that a
    convolution is a ``linear``.
    """
    dims = len(kernel_size)
    geometry = _geometry({"stride": stride, "padding": padding, "dilation": dilation}, dims)
    batch, (channels, *sizes) = split_batch(x.shape, dims)
    out = window_sizes(sizes, kernel_size, *geometry)
    n, spots, taps = math.prod(batch), math.prod(out), math.prod(kernel_size)
    rows = x.reshape(n * channels, math.prod(sizes)).permute(1, 0)  # (prod(sizes), n * channels)
    columns = gather(rows, windows(sizes, kernel_size, *geometry, out))  # (spots, taps, n * channels)
    columns = columns.reshape(spots, taps, n, channels).permute(2, 0, 3, 1)
    return columns.reshape(*batch, *out, channels * taps)


# Convolutions


def _conv_rule(dims: int) -> Rule:
    def rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
        x, weight, bias = args
        require_float(x, weight, bias)
        geometry, groups = _geometry(attrs, dims), attrs["groups"]
        batch, (channels, *sizes) = split_batch(x.shape, dims)
        per_group = _per_group(channels, groups)
        folded = dims == 3 and weight.ndim == 4  # (out * in, *kernel): outputs and inputs in one axis
        if not folded and weight.ndim != dims + 2:
            raise ShapeError(f"weight must have {dims + 2} axes, (out, in / groups, *kernel); got {weight.ndim}")
        out, rest = divmod(weight.shape[0], per_group) if folded else (weight.shape[0], 0)
        if rest or out % groups or not (folded or weight.shape[1] == per_group):
            raise ShapeError(
                f"{channels} channels in {groups} group(s) need a weight of (out, {per_group}, *kernel), where out "
                f"is a multiple of {groups}; got {weight.shape}"
            )
        _require_bias(bias, out)
        return (*batch, out, *window_sizes(sizes, weight.shape[-dims:], *geometry)), F32

    return rule


def _conv(dims: int, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, **geometry: Sizes) -> Tensor:
    columns = im2col(x, kernel_size=weight.shape[-dims:], **geometry)
    n_batch = x.ndim - dims - 1
    batch, out = columns.shape[:n_batch], columns.shape[n_batch:-1]
    n, spots, width = math.prod(batch), math.prod(out), columns.shape[-1] // groups
    n_out = weight.size // width
    if groups == 1:
        y = linear(columns.reshape(n, spots, width), weight.reshape(n_out, width)).permute(0, 2, 1)
    else:
        parts = columns.reshape(n, spots, groups, width).permute(0, 2, 1, 3)  # (n, groups, spots, width)
        y = parts.matmul(weight.reshape(groups, n_out // groups, width), transpose=True).permute(0, 1, 3, 2)
    return _with_bias(y.reshape(*batch, n_out, *out), bias, dims)


@composite(_conv_rule(1))
def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over one axis, as ``torch.nn.functional.conv1d``; depthwise with groups = channels.

    Shapes: x (n, channels, size) or (channels, size), weight (out, channels / groups, kernel), bias (out,)
    give (n, out, out_size), sizes as in ``im2col``.
    """
    return _conv(1, x, weight, bias, groups, stride=stride, padding=padding, dilation=dilation)


@composite(_conv_rule(2))
def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over height and width, as ``torch.nn.functional.conv2d``; depthwise with groups = channels.

    Shapes: x (n, channels, h, w) or (channels, h, w), weight (out, channels / groups, kernel_h, kernel_w),
    bias (out,) give (n, out, out_h, out_w), sizes as in ``im2col``.
    """
    return _conv(2, x, weight, bias, groups, stride=stride, padding=padding, dilation=dilation)


@composite(_conv_rule(3))
def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution over depth (or time), height and width, as ``torch.nn.functional.conv3d``.

    Shapes: x (n, channels, d, h, w) or (channels, d, h, w), weight (out, channels / groups, kernel_d, kernel_h,
    kernel_w), bias (out,) give (n, out, out_d, out_h, out_w), sizes as in ``im2col``. A GGUF tensor has four axes at
    most, so the weight may also be (out * channels / groups, kernel_d, kernel_h, kernel_w). Without the batch axis, no
    tensor has five axes, which some backends cannot hold.
    """
    return _conv(3, x, weight, bias, groups, stride=stride, padding=padding, dilation=dilation)


# Transposed convolutions


def _conv_transpose_rule(dims: int) -> Rule:
    def rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
        x, weight, bias = args
        require_float(x, weight, bias)
        (stride, padding, dilation), groups = _geometry(attrs, dims), attrs["groups"]
        extra = attrs["output_padding"] = integers("output_padding", attrs["output_padding"], dims, least=0)
        if any(e >= max(s, d) for e, s, d in zip(extra, stride, dilation)):
            raise ShapeError(f"output_padding is {extra}; expected less than stride or dilation")
        batch, (channels, *sizes) = split_batch(x.shape, dims)
        _per_group(channels, groups)
        if weight.ndim != dims + 2 or weight.shape[0] != channels:
            raise ShapeError(f"weight must be ({channels}, out / groups, *kernel), {dims + 2} axes; got {weight.shape}")
        out = weight.shape[1] * groups
        _require_bias(bias, out)
        axes = zip(sizes, weight.shape[2:], stride, padding, dilation, extra)
        spatial = tuple((size - 1) * s - 2 * p + d * (k - 1) + e + 1 for size, k, s, p, d, e in axes)
        if min(spatial) < 1:
            raise ShapeError(f"the padding is too large: the sizes of the output would be {spatial}")
        return (*batch, out, *spatial), F32

    return rule


def _conv_transpose(x: Tensor, weight: Tensor, bias: Tensor | None, **attrs: Any) -> Tensor:
    """Multiply every input with every tap in one product; then each output is the sum of the products that reach it."""
    dims = weight.ndim - 2
    shape, _ = _conv_transpose_rule(dims)((x, weight, bias), attrs)
    geometry, groups = _geometry(attrs, dims), attrs["groups"]
    batch, (n_out, *out) = split_batch(shape, dims)
    (channels, per_group, *kernel), sizes = weight.shape, x.shape[-dims:]
    n, spots, taps = math.prod(batch), math.prod(sizes), math.prod(kernel)

    inputs = x.reshape(n, groups, channels // groups, spots).permute(0, 1, 3, 2)  # (n, groups, spots, in)
    y = inputs @ weight.reshape(groups, channels // groups, per_group * taps)
    y = y.permute(0, 2, 1, 3).reshape(n, spots, n_out, taps).permute(1, 3, 0, 2)  # (spots, taps, n, out)
    source, tap = transposed_windows(sizes, kernel, *geometry, out)
    y = gather(y.reshape(spots * taps, n * n_out), np.where(source < 0, -1, source * taps + tap))
    y = y.sum(1).reshape(math.prod(out), n, n_out).permute(1, 2, 0)
    return _with_bias(y.reshape(*shape), bias, dims)


@composite(_conv_transpose_rule(1))
def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Transposed convolution over one axis, as ``torch.nn.functional.conv_transpose1d``.

    Shapes: x (n, channels, size) or (channels, size), weight (channels, out / groups, kernel), bias (out,)
    give (n, out, (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1).
    """
    return _conv_transpose(
        x, weight, bias,
        stride=stride, padding=padding, output_padding=output_padding, groups=groups, dilation=dilation,
    )  # fmt: skip


@composite(_conv_transpose_rule(2))
def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """Transposed convolution over height and width, as ``torch.nn.functional.conv_transpose2d``.

    Shapes: x (n, channels, h, w) or (channels, h, w), weight (channels, out / groups, kernel_h, kernel_w),
    bias (out,) give (n, out, out_h, out_w), sizes as in ``conv_transpose1d``.
    """
    return _conv_transpose(
        x, weight, bias,
        stride=stride, padding=padding, output_padding=output_padding, groups=groups, dilation=dilation,
    )  # fmt: skip


# Shared by the convolutions


def _per_group(channels: int, groups: int) -> int:
    size, rest = divmod(channels, groups)
    if rest:
        raise ShapeError(f"{channels} channels do not divide into {groups} groups")
    return size


def _require_bias(bias: Tensor | None, out: int) -> None:
    if bias is not None and bias.shape != (out,):
        raise ShapeError(f"bias must be ({out},), one number for each output channel; got {bias.shape}")


def _with_bias(y: Tensor, bias: Tensor | None, dims: int) -> Tensor:
    """Add ``bias`` (channels,) to the channels of ``y``, whose last ``dims`` axes are spatial."""
    return y if bias is None else y + bias.reshape(*bias.shape, *(1,) * dims)
