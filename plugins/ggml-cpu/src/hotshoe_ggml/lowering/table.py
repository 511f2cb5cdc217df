"""The table of lowerings: for each op the function that makes its ggml nodes, and which nodes it covers."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.lowering.builder import Ptr
from hotshoe_ggml.native.context import MAX_AXES, MAX_EXTENT

__all__ = ["LOWERINGS", "Lowering", "always", "can_lower", "ggml_lacks", "indices_are_i32", "lowers", "node_budget"]

_UNREADABLE = (DType.F64, DType.Q8_1, DType.Q8_K)  # ggml uses the last two only internally
_NODES = 16

Lowering = Callable[..., Ptr]
"""Called with the builder, the node, and for each operand the ggml tensor that it reads, or None."""

Predicate = Callable[[Tensor], bool]


class _Row(NamedTuple):
    """The arguments of ``lowers`` for an op."""

    when: Predicate
    ggml_lacks: Predicate
    nodes: Callable[[Tensor], int]


LOWERINGS: dict[str, Lowering] = {}
_ROWS: dict[str, _Row] = {}


def always(node: Tensor) -> bool:
    """Every node, as an argument of ``lowers``."""
    return True


def _never(node: Tensor) -> bool:
    return False


def lowers(
    *ops: str,
    when: Predicate = always,
    ggml_lacks: Predicate = _never,
    nodes: Callable[[Tensor], int] = lambda node: _NODES,
) -> Callable[[Lowering], Lowering]:
    """Register the decorated function as the lowering of these ops.

    when: whether it covers a node that ggml can represent. ggml_lacks: whether ggml has no op for the node, so that the
    unit's builder must make it. nodes: the most ggml nodes that it makes.
    """

    def add(function: Lowering) -> Lowering:
        for op in ops:
            if op in LOWERINGS:
                raise ValueError(f"op {op} has two lowerings")
            LOWERINGS[op] = function
            _ROWS[op] = _Row(when, ggml_lacks, nodes)
        return function

    return add


def can_lower(node: Tensor) -> bool:
    """Whether the lowering of this op covers these shapes and types, with a builder that makes what ggml lacks."""
    row = _ROWS.get(node.op)
    if row is None:
        return False
    if not _fits(node):
        return False
    for t in node.sources:
        # the other sources are nodes of the same graph, which are asked for themselves
        if t is not None and t.is_leaf and not _fits(t):
            return False
    return row.when is always or row.when(node)


def _fits(t: Tensor) -> bool:
    """Whether ggml can represent a tensor of this shape and type."""
    return len(t.shape) <= MAX_AXES and t.dtype not in _UNREADABLE and max(t.shape, default=1) <= MAX_EXTENT


def ggml_lacks(node: Tensor) -> bool:
    """Whether ggml has no op for this node, so that only a unit with ``runs_custom_kernels`` can run it."""
    return node.op in _ROWS and _ROWS[node.op].ggml_lacks(node)


def node_budget(node: Tensor) -> int:
    """The most ggml nodes that the lowering of this node makes."""
    return _ROWS[node.op].nodes(node)


def indices_are_i32(indexed: int, indices: int) -> Predicate:
    """Whether the operand number ``indices`` is I32, and the operand number ``indexed`` is I32 or not of integers.

    ggml's indices are I32, and I32 are the only integers that it gathers.
    """

    def holds(node: Tensor) -> bool:
        x, index = node.source(indexed), node.sources[indices]
        return index is not None and index.dtype is DType.I32 and (not x.dtype.is_integer or x.dtype is DType.I32)

    return holds
