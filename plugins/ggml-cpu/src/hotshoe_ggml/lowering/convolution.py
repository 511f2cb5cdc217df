"""Lowerings of convolution, pooling and interpolation. ggml takes the arguments for the width first, then the height.

Core decomposes what ggml lacks or computes differently: convolution in groups of several channels, transposed
convolution (ggml's takes one image and no padding), interpolation to the nearest element (ggml rounds ties
differently), and antialiasing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape, Tensor
from hotshoe_ggml.lowering.builder import F32, Builder, Ptr
from hotshoe_ggml.lowering.table import Lowering, lowers
from hotshoe_ggml.native.context import extents

__all__: list[str] = []

_WORKSPACE = 16 * 1024 * 1024  # bytes that ggml has for columns of a convolution; if not one fits, ggml divides by zero


def _is_depthwise(node: Tensor, dims: int) -> bool:
    """Whether there is one kernel for each channel."""
    x, weight = node.source(0), node.source(1)
    return bool(node.attrs["groups"] == x.shape[-dims - 1] == weight.shape[0])


def _convolves(dims: int) -> Callable[[Tensor], bool]:
    def covers(node: Tensor) -> bool:
        x, weight = node.source(0), node.source(1)
        if dims < 3 and _is_depthwise(node, dims):
            return True
        row = x.shape[-dims - 1] * math.prod(weight.shape[-dims:]) + node.shape[-dims - 1]
        return node.attrs["groups"] == 1 and F32.nbytes((row,)) <= _WORKSPACE

    return covers


def _geometry(node: Tensor, dims: int) -> list[int]:
    """Stride, padding and dilation, each from the last axis to the first. A single axis is the width of an image."""
    flat = ((1,), (0,), (1,)) if dims == 1 else ((), (), ())
    attrs = (node.attrs[name] for name in ("stride", "padding", "dilation"))
    return [i for more, values in zip(flat, attrs) for i in (*reversed(values), *more)]


def _image(shape: Shape, dims: int) -> Shape:
    """The shape, in which a single spatial axis becomes the width of an image with height 1."""
    return (*shape[:-1], 1, shape[-1]) if dims == 1 else shape


def _with_bias(b: Builder, node: Tensor, y: Ptr, bias: Ptr | None, dims: int) -> Ptr:
    y = b.reshape(y, node.shape)
    return y if bias is None else b.call("add", y, b.reshape(b.f32(bias), (node.shape[-dims - 1], *(1,) * dims)))


def _kernel(b: Builder, weight: Ptr, shape: Shape) -> Ptr:
    """The kernel, contiguous, as F32 or F16: ggml multiplies in its type."""
    return b.cont(b.reshape(weight if weight.type == DType.F16.id else b.f32(weight), shape))


def _conv(dims: int) -> Lowering:
    def lower(b: Builder, node: Tensor, x: Ptr, weight: Ptr, bias: Ptr | None) -> Ptr:
        source, w = node.source(0), node.source(1)
        image = b.cont(b.reshape(b.f32(x), _image(source.shape, dims)))
        name = "conv_2d_dw_direct" if _is_depthwise(node, dims) else "conv_2d_direct"
        y = b.call(name, _kernel(b, weight, _image(w.shape, dims)), image, *_geometry(node, dims))
        return _with_bias(b, node, y, bias, dims)

    return lower


lowers("conv1d", when=_convolves(1))(_conv(1))
lowers("conv2d", when=_convolves(2))(_conv(2))


@lowers("conv3d", when=_convolves(3))
def _conv3d(b: Builder, node: Tensor, x: Ptr, weight: Ptr, bias: Ptr | None) -> Ptr:
    """Lower conv3d, without a batch axis: ggml's four axes are channels, depth, height and width."""
    source, w = node.source(0), node.source(1)
    sizes = (source.shape[0], 1, node.shape[0])  # channels, batch, channels of the output
    y = b.call("conv_3d_direct", _kernel(b, weight, w.shape), b.cont(b.f32(x)), *_geometry(node, 3), *sizes)
    return _with_bias(b, node, y, bias, 3)


@lowers("im2col")
def _im2col(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    source = node.source(0)
    kernel = node.attrs["kernel_size"]
    dims = len(kernel)
    channels = source.shape[-dims - 1]
    shape_only = b.new(_image((channels, *kernel), dims), DType.F16)  # ggml reads its sizes only
    image = b.cont(b.reshape(b.f32(x), _image(source.shape, dims)))
    if dims == 3:
        y = b.call("im2col_3d", shape_only, image, channels, *_geometry(node, dims), F32.id)
    else:
        y = b.call("im2col", shape_only, image, *_geometry(node, dims), True, F32.id)
    return b.reshape(y, node.shape)


# Pooling


def _pools(dims: int) -> Callable[[Tensor], bool]:
    def covers(node: Tensor) -> bool:
        x = node.source(0)
        attrs = node.attrs
        if set(attrs.get("dilation", ())) - {1}:
            return False
        if not attrs.get("count_include_pad", True) and any(attrs["padding"]):
            return False  # ggml divides by the size of the window
        axes = zip(x.shape[-dims:], node.shape[-dims:], attrs["kernel_size"], attrs["stride"], attrs["padding"])
        return all(n == (size + 2 * p - k) // s + 1 for size, n, k, s, p in axes)  # no window that ceil_mode added

    return covers


def _pool(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    """Pooling of the last two axes, or of one with windows of height 1."""
    kind = b.g.GGML_OP_POOL_MAX if node.op.startswith("max") else b.g.GGML_OP_POOL_AVG
    kernel, stride, padding = node.attrs["kernel_size"], node.attrs["stride"], node.attrs["padding"]
    if len(kernel) == 1:
        kernel, stride, padding = (1, *kernel), (1, *stride), (0, *padding)
    return b.call("pool_2d", b.cont(b.f32(x)), kind, *kernel[::-1], *stride[::-1], *padding[::-1])


lowers("max_pool1d", "avg_pool1d", when=_pools(1))(_pool)
lowers("max_pool2d", "avg_pool2d", when=_pools(2))(_pool)


def _interpolates(node: Tensor) -> bool:
    return node.attrs["mode"] in ("bilinear", "bicubic") and not node.attrs["antialias"]


@lowers("interpolate", when=_interpolates)
def _interpolate(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    mode = b.g.GGML_SCALE_MODE_BILINEAR if node.attrs["mode"] == "bilinear" else b.g.GGML_SCALE_MODE_BICUBIC
    corners = b.g.GGML_SCALE_FLAG_ALIGN_CORNERS if node.attrs["align_corners"] else 0
    return b.call("interpolate", b.cont(b.f32(x)), *extents(node.shape), mode | corners)
