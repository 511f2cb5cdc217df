"""Lowerings of matrix products. ggml_mul_mat(w, x) is x @ w.T, with w first."""

from __future__ import annotations

from hotshoe_core.ops.bounds import are_distinct
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.lowering.builder import Builder, Ptr
from hotshoe_ggml.lowering.routing import MOST_TERMS
from hotshoe_ggml.lowering.table import indices_are_i32, lowers


@lowers("linear")
def _linear(b: Builder, node: Tensor, x: Ptr, weight: Ptr) -> Ptr:
    flat = b.f32(x)
    if node.ndim == 2:  # most nodes of a text model
        return b.call("mul_mat", b.factor(weight), b.factor(flat))
    flat = b.reshape(flat, (node.size // node.shape[-1], weight.ne[0]))  # one product, not one for each batch row
    return b.reshape(b.call("mul_mat", b.factor(weight), b.factor(flat)), node.shape)


@lowers("matmul", nodes=lambda node: 16 + 2 * MOST_TERMS)
def _matmul(b: Builder, node: Tensor, x: Ptr, y: Ptr) -> Ptr:
    full_precision = node.attrs["precision"] == "full"
    return b.matmul(b.rows(b.f32(x)), y, transpose=node.attrs["transpose"], full_precision=full_precision)


@lowers("linear_experts", when=indices_are_i32(1, 2), nodes=lambda node: 16 + 4 * node.shape[1])
def _linear_experts(b: Builder, node: Tensor, x: Ptr, weight: Ptr, experts: Ptr) -> Ptr:
    x, weight, experts = b.cont(b.f32(x)), b.rows(weight), b.indices(node, experts)
    return b.linear_experts(x, weight, experts, distinct=are_distinct(node.source(2)))


@lowers("add_experts", when=indices_are_i32(1, 2))
def _add_experts(b: Builder, node: Tensor, x: Ptr, bias: Ptr, experts: Ptr) -> Ptr:
    return b.call("add_id", b.rows(b.f32(x)), b.rows(b.f32(bias)), b.indices(node, experts))


@lowers("solve_lower")
def _solve_lower(b: Builder, node: Tensor, a: Ptr, y: Ptr) -> Ptr:
    return b.call("solve_tri", b.cont(b.f32(a)), b.cont(b.f32(y)), True, True, False)
