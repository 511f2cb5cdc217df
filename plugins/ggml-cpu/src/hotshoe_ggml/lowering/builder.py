"""What every lowering is made with: Builder, which makes ggml nodes, and the table the lowerings stand in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.ops.bounds import are_within
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Shape, Tensor
from hotshoe_ggml._native import lib
from hotshoe_ggml.cpu.kernels import pointwise_node

__all__ = [
    "F32", "LOWERINGS", "MAX_AXES", "Builder", "Lowering", "Ptr", "always", "can_lower", "extents",
    "indices_are_i32", "lowers", "node_budget",
]  # fmt: skip

Ptr = Any  # struct ggml_tensor *
F32 = DType.F32
MAX_AXES = 4
_LONGEST = 2**31 - 1  # ggml_permute, for one, keeps the sizes of axes in an int

_UNREADABLE = frozenset({DType.F64, DType.Q8_1, DType.Q8_K})  # the last two: for ggml's own intermediate results

_NODES = 16  # the most ggml nodes a lowering makes, unless it says otherwise

Lowering = Callable[..., Ptr]
Predicate = Callable[[Tensor], bool]


class _Row(NamedTuple):
    """What is known of an op's lowering beside the function: see ``lowers``."""

    when: Predicate
    own_kernels: Predicate
    nodes: Callable[[Tensor], int]


LOWERINGS: dict[str, Lowering] = {}
_ROWS: dict[str, _Row] = {}


def always(node: Tensor) -> bool:
    """Of ``lowers``: every node."""
    return True


def _never(node: Tensor) -> bool:
    return False


def lowers(
    *ops: str,
    when: Predicate = always,
    own_kernels: Predicate = _never,
    nodes: Callable[[Tensor], int] = lambda node: _NODES,
) -> Callable[[Lowering], Lowering]:
    """Enter the function as the lowering of these ops.

    when: for which nodes, of those ggml can hold at all. own_kernels: which of them need ours, that is, the CPU.
    nodes: how many ggml nodes it makes at most.
    """

    def add(function: Lowering) -> Lowering:
        for op in ops:
            if op in LOWERINGS:
                raise ValueError(f"op {op} has two lowerings")
            LOWERINGS[op] = function
            _ROWS[op] = _Row(when, own_kernels, nodes)
        return function

    return add


def can_lower(node: Tensor, *, own_kernels: bool = True) -> bool:
    """Whether the lowering of this op covers these shapes and types. own_kernels: whether the device runs ours."""
    tensors = [node, *(s for s in node.sources if s is not None)]
    if node.op not in LOWERINGS or any(t.ndim > MAX_AXES or t.dtype in _UNREADABLE for t in tensors):
        return False
    if any(max(t.shape, default=1) > _LONGEST for t in tensors):
        return False
    row = _ROWS[node.op]
    return row.when(node) and (own_kernels or not row.own_kernels(node))


def node_budget(node: Tensor) -> int:
    """How many ggml nodes the lowering of this node makes at most."""
    return _ROWS[node.op].nodes(node)


def indices_are_i32(indexed: int, indices: int) -> Predicate:
    """ggml's indices are I32, and of integers it gathers I32 only. The two operands are given by their places."""

    def holds(node: Tensor) -> bool:
        x, at = node.sources[indexed], node.sources[indices]
        assert x is not None
        return at is not None and at.dtype is DType.I32 and (not x.dtype.is_integer or x.dtype is DType.I32)

    return holds


def extents(shape: Shape) -> list[int]:
    """A NumPy shape as ggml's four sizes, fastest first. Raises UnsupportedOpError where ggml would abort."""
    if len(shape) > MAX_AXES:
        raise UnsupportedOpError(
            f"ggml's tensors have {MAX_AXES} axes at most; got the shape {shape}",
            hint="make one of two axes: a weight of conv3d may be (out * in, depth, height, width)",
        )
    if max(shape, default=1) > _LONGEST:
        raise UnsupportedOpError(
            f"ggml counts along an axis in 32 bits; got the shape {shape}", hint="divide the longest axis into two"
        )
    return [*reversed(shape), *(1,) * (MAX_AXES - len(shape))]


class Builder:
    """Builds ggml nodes in one ``ggml_context``.

    custom: our own kernels may be used, which run on the CPU only. flash: "on", "off" or "auto". n_threads: of the CPU.
    bf16: those kernels may round F16 to BF16. keep: what must live as long as the graph.
    """

    def __init__(self, context: Any, *, custom: bool, flash: str, n_threads: int, bf16: bool) -> None:
        self.context = context
        self.n_threads = n_threads
        self.g = lib()
        self.custom = custom
        self.flash = flash
        self.bf16 = bf16
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

    def indices(self, node: Tensor, native: Ptr, which: int = 0) -> Ptr:
        """Operand ``which`` of those ``node`` uses as indices, contiguous and within what it indexes.

        ggml aborts on an index out of range, or reads beyond the tensor. Those that come from outside are checked
        there; those computed by the graph are proved to fit, or limited.
        """
        source, indices, axis = TABLE[node.op].indexed[which]
        x, at = node.sources[source], node.sources[indices]
        assert x is not None
        assert at is not None
        n = x.shape[axis]
        if are_within(at, n):
            return self.cont(native)
        if self.custom:
            return pointwise_node(self, "clamp", list(native.ne), [native], low=0, high=n - 1)
        floats = self.call("clamp", self.call("cast", self.cont(native), F32.id), 0.0, float(n - 1))
        return self.call("cast", floats, DType.I32.id)

    def column(self, x: Ptr, i: int, axis: int = 0) -> Ptr:
        """Element ``i`` of one of ggml's axes, which stays with size 1, as a view."""
        ne = list(x.ne)
        ne[axis] = 1
        return self.call("view_4d", x, *ne, x.nb[1], x.nb[2], x.nb[3], i * x.nb[axis])

    def repeat(self, x: Ptr, ne: list[int]) -> Ptr:
        return x if list(x.ne) == ne else self.call("repeat_4d", self.rows(x), *ne)
