"""Lowerings of reductions, softmax and norms."""

from __future__ import annotations

import math

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml._native import ffi
from hotshoe_ggml.cpu.kernels import layer_norm_node, rms_norm_node, row_max_node
from hotshoe_ggml.lowering.builder import MAX_AXES, Builder, Ptr, lowers

__all__ = ["largest", "softmax"]


@lowers("sum", "mean", "max")
def _reduce(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    (source,) = node.sources
    assert source is not None
    reduced = sorted(source.ndim - 1 - axis for axis in node.attrs["axis"])
    x = b.f32(x)
    if not reduced:
        return b.call("cont", x)  # a value of its own: x may be a state, and overwritten later
    if reduced != list(range(len(reduced))):  # only the fastest axes can be reduced: bring them there
        order = [*reduced, *(i for i in range(MAX_AXES) if i not in reduced)]
        x = b.call("permute", x, *(order.index(i) for i in range(MAX_AXES)))
    size = math.prod(x.ne[i] for i in range(len(reduced)))
    x = b.reshape(b.cont(x), (source.size // size, size))
    return b.reshape(largest(b, x) if node.op == "max" else b.call(_REDUCTIONS[node.op], x), node.shape)


_REDUCTIONS = {"sum": "sum_rows", "mean": "mean"}


def largest(b: Builder, x: Ptr) -> Ptr:
    """The largest of each row of a matrix."""
    if b.custom:
        return row_max_node(b, x)
    at = b.reshape(b.call("argmax", x), (x.ne[1], 1))
    return b.call("get_rows", b.reshape(x, (x.ne[1], x.ne[0], 1)), at)


@lowers("softmax")
def _softmax(b: Builder, node: Tensor, x: Ptr, mask: Ptr | None) -> Ptr:
    return softmax(b, b.cont(b.f32(x)), mask, node.attrs["scale"])


def softmax(b: Builder, x: Ptr, mask: Ptr | None, scale: float) -> Ptr:
    if mask is None:
        return b.call("soft_max_ext", x, ffi.NULL, scale, 0.0)
    # ggml repeats the mask over its two slowest axes; the row count and length must be x's
    mask = mask if mask.type == DType.F16.id else b.f32(mask)
    mask = b.cont(b.repeat(mask, [x.ne[0], x.ne[1], mask.ne[2], mask.ne[3]]))
    return b.call("soft_max_ext", x, mask, scale, 0.0)


@lowers("rms_norm")
def _rms_norm(b: Builder, node: Tensor, x: Ptr, weight: Ptr | None) -> Ptr:
    x = b.rows(b.f32(x))
    ours = rms_norm_node(b, x, weight, node.attrs["eps"]) if b.custom else None
    if ours is not None:
        return ours
    y = b.call("rms_norm", x, node.attrs["eps"])
    return y if weight is None else b.call("mul", y, b.f32(weight))


@lowers("layer_norm")
def _layer_norm(b: Builder, node: Tensor, x: Ptr, weight: Ptr | None, bias: Ptr | None) -> Ptr:
    x = b.rows(b.f32(x))
    ours = layer_norm_node(b, x, weight, bias, node.attrs["eps"]) if b.custom else None
    if ours is not None:
        return ours
    y = b.call("norm", x, node.attrs["eps"])
    y = y if weight is None else b.call("mul", y, b.f32(weight))
    return y if bias is None else b.call("add", y, b.f32(bias))


@lowers("l2_norm")
def _l2_norm(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("l2_norm", b.rows(b.f32(x)), node.attrs["eps"])


@lowers("cumsum")
def _cumsum(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("cumsum", b.cont(b.f32(x)))
