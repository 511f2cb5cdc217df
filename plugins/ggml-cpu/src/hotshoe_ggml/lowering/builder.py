"""What every lowering is made with: Builder, which makes ggml nodes, and the table the lowerings stand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotshoe_core.dtypes import DType
from hotshoe_core.tensor import Shape, Tensor
from hotshoe_ggml._native import lib

__all__ = ["LOWERINGS", "MAX_AXES", "Builder", "Ptr", "can_lower", "extents", "indices_are_i32", "lowers"]

Ptr = Any  # struct ggml_tensor *
F32 = DType.F32
MAX_AXES = 4

_UNREADABLE = frozenset({DType.F64, DType.Q8_1, DType.Q8_K})  # the last two: for ggml's own intermediate results

Lowering = Callable[..., Ptr]
Predicate = Callable[[Tensor], bool]
LOWERINGS: dict[str, Lowering] = {}
_CONDITIONS: dict[str, Predicate] = {}


def lowers(*ops: str, when: Predicate | None = None) -> Callable[[Lowering], Lowering]:
    """Enter the function as the lowering of these ops. ``when``: for which nodes, of those ggml can hold at all."""

    def add(function: Lowering) -> Lowering:
        for op in ops:
            if op in LOWERINGS:
                raise ValueError(f"op {op} has two lowerings")
            LOWERINGS[op] = function
            if when is not None:
                _CONDITIONS[op] = when
        return function

    return add


def can_lower(node: Tensor) -> bool:
    """Whether the lowering of this op covers these shapes and types."""
    tensors = [node, *(s for s in node.sources if s is not None)]
    if node.op not in LOWERINGS or any(t.ndim > MAX_AXES or t.dtype in _UNREADABLE for t in tensors):
        return False
    condition = _CONDITIONS.get(node.op)
    return condition is None or condition(node)


def indices_are_i32(indexed: int, indices: int) -> Predicate:
    """ggml's indices are I32, and of integers it gathers I32 only. The two operands are given by their places."""

    def holds(node: Tensor) -> bool:
        x, at = node.sources[indexed], node.sources[indices]
        assert x is not None
        return at is not None and at.dtype is DType.I32 and (not x.dtype.is_integer or x.dtype is DType.I32)

    return holds


def extents(shape: Shape) -> list[int]:
    """A NumPy shape as ggml's four sizes, fastest first."""
    return [*reversed(shape), *(1,) * (MAX_AXES - len(shape))]


class Builder:
    """Builds ggml nodes in one ``ggml_context``.

    custom: our own kernels may be used, which run on the CPU only. flash: "on", "off" or "auto". keep: what
    must live as long as the graph.
    """

    def __init__(self, context: Any, *, custom: bool, flash: str) -> None:
        self.context = context
        self.g = lib()
        self.custom = custom
        self.flash = flash
        self.keep: list[Any] = []

    def new(self, shape: Shape, dtype: DType) -> Ptr:
        return self.g.ggml_new_tensor(self.context, dtype.id, MAX_AXES, extents(shape))

    def call(self, name: str, *args: Any) -> Ptr:
        return getattr(self.g, "ggml_" + name)(self.context, *args)

    def cont(self, x: Ptr) -> Ptr:
        """``x`` in contiguous memory, with the strides that follow from its sizes."""
        if not self.g.ggml_is_contiguous(x):
            return self.call("cont", x)
        # the stride of an axis of size 1 means nothing, but some of ggml's ops insist on it
        return x if self._usual_strides(x) else self.call("reshape_4d", x, *x.ne)

    def rows(self, x: Ptr) -> Ptr:
        """``x`` with each row contiguous; rows may lie apart."""
        return x if x.nb[0] == self.g.ggml_type_size(x.type) else self.cont(x)

    def _usual_strides(self, x: Ptr) -> bool:
        row = self.g.ggml_row_size(x.type, x.ne[0])
        usual = [self.g.ggml_type_size(x.type), row, row * x.ne[1], row * x.ne[1] * x.ne[2]]
        return list(x.nb) == usual

    def f32(self, x: Ptr) -> Ptr:
        return x if x.type == F32.id else self.call("cast", x, F32.id)

    def reshape(self, x: Ptr, shape: Shape) -> Ptr:
        ne = extents(shape)
        if list(x.ne) == ne:
            return x
        return self.call("reshape_4d", self.cont(x), *ne)

    def swap(self, x: Ptr, a: int, b: int) -> Ptr:
        """Two of ggml's axes exchanged, as a view."""
        order = list(range(MAX_AXES))
        order[a], order[b] = b, a
        return self.call("permute", x, *order)

    def repeat(self, x: Ptr, ne: list[int]) -> Ptr:
        return x if list(x.ne) == ne else self.call("repeat_4d", x, *ne)
