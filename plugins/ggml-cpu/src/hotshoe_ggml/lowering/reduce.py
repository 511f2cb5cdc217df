"""Lowerings of reductions, softmax and norms."""

from __future__ import annotations

from hotshoe_core.dtypes import DType
from hotshoe_core.tensor import Tensor
from hotshoe_ggml._kernels import layer_norm_node, rms_norm_node
from hotshoe_ggml._native import ffi
from hotshoe_ggml.lowering.builder import MAX_AXES, Builder, Ptr, lowers

__all__ = ["softmax"]


@lowers("sum", "mean")
def _reduce(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    (source,) = node.sources
    assert source is not None
    at = source.ndim - 1 - node.attrs["axis"]
    x = b.f32(x)
    if at:  # only the fastest axis can be reduced: bring it there, the others keep their order
        order = [i + 1 if i < at else i for i in range(MAX_AXES)]
        order[at] = 0
        x = b.call("permute", x, *order)
    return b.reshape(b.call("mean" if node.op == "mean" else "sum_rows", b.cont(x)), node.shape)


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
