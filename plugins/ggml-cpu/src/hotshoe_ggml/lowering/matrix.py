"""Lowerings of matrix products. ggml_mul_mat(w, x) is x @ w.T, with w first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotshoe_core.dtypes import DType
from hotshoe_core.tensor import Tensor
from hotshoe_ggml._fusion import Fused
from hotshoe_ggml._packed import PackedWeight, linear_node
from hotshoe_ggml.lowering.builder import Builder, Ptr, indices_are_i32, lowers

__all__ = ["lower_fused"]


@lowers("linear")
def _linear(b: Builder, node: Tensor, x: Ptr, weight: Ptr | PackedWeight) -> Ptr:
    if isinstance(weight, PackedWeight):
        return b.reshape(linear_node(b, b.cont(x), weight), node.shape)
    flat = b.reshape(b.f32(x), (node.size // node.shape[-1], weight.ne[0]))  # one product, not one a batch element
    return b.reshape(b.call("mul_mat", b.rows(weight), b.rows(flat)), node.shape)


def lower_fused(b: Builder, node: Tensor, fused: Fused, native: Mapping[Tensor, Any]) -> Ptr:
    """A product with a packed weight and what was fused into it; ``node`` is the last of the pattern."""
    x, weight = fused.linear.sources
    assert x is not None
    assert weight is not None
    bias = None if fused.bias is None else native[fused.bias]
    residual = None if fused.residual is None else b.cont(native[fused.residual])
    return b.reshape(linear_node(b, b.cont(native[x]), native[weight], bias, residual, fused.activation), node.shape)


@lowers("matmul")
def _matmul(b: Builder, node: Tensor, x: Ptr, y: Ptr) -> Ptr:
    x = b.rows(b.f32(x))
    y = b.rows(y if node.attrs["transpose"] else b.call("transpose", y))
    y = b.f32(y) if y.type == DType.F64.id else y
    batch = [max(x.ne[2], y.ne[2]), max(x.ne[3], y.ne[3])]
    if [x.ne[2], x.ne[3]] != batch:  # ggml repeats only its first operand, which is ours transposed
        x = b.repeat(x, [x.ne[0], x.ne[1], *batch])
    product = b.call("mul_mat", y, x)
    if node.attrs["precision"] == "full":
        b.g.ggml_mul_mat_set_prec(product, b.g.GGML_PREC_F32)
    return product


@lowers("linear_experts", when=indices_are_i32(1, 2))
def _linear_experts(b: Builder, node: Tensor, x: Ptr, weight: Ptr, experts: Ptr) -> Ptr:
    return b.call("mul_mat_id", b.rows(weight), b.cont(b.f32(x)), b.cont(experts))
