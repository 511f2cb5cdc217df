"""Lowerings of matrix products. ggml_mul_mat(w, x) is x @ w.T, with w first."""

from __future__ import annotations

import functools
from collections.abc import Callable

from hotshoe_core.ops.bounds import are_distinct
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml._native import ffi
from hotshoe_ggml.cpu.fusion import Fused, operands
from hotshoe_ggml.cpu.kernels import few_rows_node
from hotshoe_ggml.cpu.packed import PackedWeight, experts_node, linear_node
from hotshoe_ggml.lowering.builder import Builder, Ptr, indices_are_i32, lowers

__all__ = ["lower_fused"]


@lowers("linear")
def _linear(b: Builder, node: Tensor, x: Ptr, weight: Ptr | PackedWeight) -> Ptr:
    if isinstance(weight, PackedWeight):
        return b.reshape(linear_node(b, b.cont(x), weight), node.shape)
    flat = b.reshape(b.f32(x), (node.size // node.shape[-1], weight.ne[0]))  # one product, not one a batch element
    return b.reshape(b.call("mul_mat", b.rows(weight), b.rows(flat)), node.shape)


def lower_fused(b: Builder, node: Tensor, fused: Fused, read: Callable[[str, Tensor, int], Ptr | PackedWeight]) -> Ptr:
    """A product of our own and what was fused into it; ``node`` is the last of the pattern.

    read: gives a tensor as an op reads it, as which of its operands.
    """
    op = fused.linear.op
    x, weight = (read(op, t, i) for i, t in enumerate(operands(fused.linear)))
    gate = None if fused.gate is None else read(op, operands(fused.gate)[1], 1)
    if op == "linear_experts":
        experts = fused.linear.sources[2]
        assert experts is not None
        chosen = b.indices(fused.linear, read(op, experts, 2))
        return experts_node(b, x, weight, chosen, fused.activation, gate)
    bias = None if fused.bias is None else read(op, fused.bias, 0)
    residual = None if fused.residual is None else b.cont(read(op, fused.residual, 0))
    y = linear_node(b, b.cont(x), weight, bias, residual, fused.activation, gate)
    return b.reshape(y, node.shape)


@lowers("matmul")
def _matmul(b: Builder, node: Tensor, x: Ptr, y: Ptr) -> Ptr:
    x = b.rows(b.f32(x))
    if b.custom and not node.attrs["transpose"] and (few := few_rows_node(b, x, y)) is not None:
        return few
    y = b.rows(y if node.attrs["transpose"] else b.call("transpose", y))
    y = b.f32(y) if y.type == DType.F64.id else y
    batch = [max(x.ne[2], y.ne[2]), max(x.ne[3], y.ne[3])]
    if [x.ne[2], x.ne[3]] != batch:  # ggml repeats only its first operand, which is ours transposed
        x = b.repeat(x, [x.ne[0], x.ne[1], *batch])
    product = b.call("mul_mat", y, x)
    if node.attrs["precision"] == "full":
        b.g.ggml_mul_mat_set_prec(product, b.g.GGML_PREC_F32)
    return product


@lowers(
    "linear_experts",
    when=indices_are_i32(1, 2),
    nodes=lambda node: 16 + 4 * node.shape[1],
)
def _linear_experts(b: Builder, node: Tensor, x: Ptr, weight: Ptr, experts: Ptr) -> Ptr:
    x, weight, experts = b.cont(b.f32(x)), b.rows(weight), b.indices(node, experts)
    chosen = node.sources[2]
    assert chosen is not None
    if are_distinct(chosen) or not _is_repacked(b, weight):
        return b.call("mul_mat_id", weight, x, experts)
    # ggml's product with repacked weights counts on every row to name an expert once: one choice at a time
    columns = [b.cont(b.column(experts, j)) for j in range(node.shape[1])]
    rows = [x if x.ne[1] == 1 else b.cont(b.column(x, j, axis=1)) for j in range(node.shape[1])]
    parts = [b.call("mul_mat_id", weight, row, column) for row, column in zip(rows, columns)]
    return functools.reduce(lambda joined, part: b.call("concat", joined, part, 1), parts)


def _is_repacked(b: Builder, weight: Ptr) -> bool:
    """Whether it lies in the layout of ggml's CPU_REPACK, which is no memory that the host may read."""
    return b.custom and weight.buffer != ffi.NULL and not b.g.ggml_backend_buffer_is_host(weight.buffer)


@lowers("add_experts", when=indices_are_i32(1, 2))
def _add_experts(b: Builder, node: Tensor, x: Ptr, bias: Ptr, experts: Ptr) -> Ptr:
    return b.call("add_id", b.rows(b.f32(x)), b.rows(b.f32(bias)), b.indices(node, experts))


@lowers("solve_lower")
def _solve_lower(b: Builder, node: Tensor, a: Ptr, y: Ptr) -> Ptr:
    return b.call("solve_tri", b.cont(b.f32(a)), b.cont(b.f32(y)), True, True, False)
