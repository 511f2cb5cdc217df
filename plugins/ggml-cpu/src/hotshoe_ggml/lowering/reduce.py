"""Lowerings of reductions, softmax and norms."""

from __future__ import annotations

import math

from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.lowering.builder import Builder, Ptr
from hotshoe_ggml.lowering.table import lowers
from hotshoe_ggml.native.context import MAX_AXES


@lowers("sum", "mean", "max")
def _reduce(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    source = node.source(0)
    reduced = sorted(source.ndim - 1 - axis for axis in node.attrs["axis"])
    x = b.f32(x)
    if not reduced:
        return b.call("cont", x)  # a copy: x may be a state, which is overwritten later
    if reduced != list(range(len(reduced))):  # only the fastest axes can be reduced: move them there
        order = [*reduced, *(i for i in range(MAX_AXES) if i not in reduced)]
        x = b.call("permute", x, *(order.index(i) for i in range(MAX_AXES)))
    size = math.prod(x.ne[i] for i in range(len(reduced)))
    x = b.reshape(b.cont(x), (source.size // size, size))
    return b.reshape(b.row_max(x) if node.op == "max" else b.call(_REDUCTIONS[node.op], x), node.shape)


_REDUCTIONS = {"sum": "sum_rows", "mean": "mean"}


@lowers("softmax")
def _softmax(b: Builder, node: Tensor, x: Ptr, mask: Ptr | None) -> Ptr:
    return b.softmax(b.cont(b.f32(x)), mask, node.attrs["scale"])


@lowers("rms_norm")
def _rms_norm(b: Builder, node: Tensor, x: Ptr, weight: Ptr | None) -> Ptr:
    return b.rms_norm(b.rows(b.f32(x)), weight, node.attrs["eps"])


@lowers("layer_norm")
def _layer_norm(b: Builder, node: Tensor, x: Ptr, weight: Ptr | None, bias: Ptr | None) -> Ptr:
    return b.layer_norm(b.rows(b.f32(x)), weight, bias, node.attrs["eps"])


@lowers("l2_norm")
def _l2_norm(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("l2_norm", b.rows(b.f32(x)), node.attrs["eps"])


@lowers("cumsum")
def _cumsum(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("cumsum", b.cont(b.f32(x)))
