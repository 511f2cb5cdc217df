"""Lowerings of ops that move, select or order elements."""

from __future__ import annotations

from hotshoe_core.ops.bounds import are_within
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape, Tensor
from hotshoe_ggml.lowering.builder import Builder, Ptr
from hotshoe_ggml.lowering.table import indices_are_i32, lowers
from hotshoe_ggml.native.context import MAX_AXES, extents


@lowers("reshape")
def _reshape(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.reshape(x, node.shape)


@lowers("permute")
def _permute(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    axes = node.attrs["axes"]
    last = len(axes) - 1
    order = list(range(MAX_AXES))
    for to, from_ in enumerate(axes):
        order[last - from_] = last - to  # ggml names, for each axis of the source, where it goes
    return b.call("permute", x, *order)


_REPEATED = frozenset({DType.F32, DType.F16, DType.BF16, DType.I16, DType.I32})


def _can_expand(node: Tensor) -> bool:
    return node.dtype in _REPEATED or node.size == node.source(0).size


@lowers("expand", when=_can_expand)
def _expand(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.repeat(b.cont(x), extents(node.shape))


@lowers("slice")
def _slice(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return _cut(b, node, x, node.shape)


def _cut(b: Builder, node: Tensor, x: Ptr, shape: Shape) -> Ptr:
    """The part of ``x`` that ``node.attrs["slices"]`` select, as a view."""
    slices = list(reversed(node.attrs["slices"]))
    nb, size = list(x.nb), node.dtype.block_size
    offset = sum(s[0] // (size if i == 0 else 1) * nb[i] for i, s in enumerate(slices))
    for i, s in enumerate(slices):
        nb[i] *= s[2]
    view = b.call("view_4d", x, *extents(shape), nb[1], nb[2], nb[3], offset)
    view.nb[0] = nb[0]  # ggml_view assumes dense rows; those of a transposed or stepped tensor are not
    return view


@lowers("set_slice")
def _set_slice(b: Builder, node: Tensor, x: Ptr, values: Ptr) -> Ptr:
    """Write in place: the executable passes a copy if the old value of ``x`` is still needed."""
    source = node.source(1)
    x = b.cont(x)
    written = b.call("cpy", values, _cut(b, node, x, source.shape))
    whole = b.call("view_4d", x, *x.ne, x.nb[1], x.nb[2], x.nb[3], 0)
    whole.src[1] = written  # so the copy runs before the nodes that read the result
    return whole


@lowers("concat", nodes=lambda node: 3 * len(node.sources))
def _concat(b: Builder, node: Tensor, *xs: Ptr) -> Ptr:
    if len(xs) == 1:
        return b.call("cont", xs[0])  # a copy: x may be a state, which is overwritten later
    axis = node.ndim - 1 - node.attrs["axis"]
    parts = [b.cont(x) for x in xs]
    while len(parts) > 1:  # in pairs: ggml copies both sides whenever it joins two
        joined = [b.call("concat", x, y, axis) for x, y in zip(parts[::2], parts[1::2])]
        parts = joined + parts[len(joined) * 2 :]
    return parts[0]


@lowers("pad")
def _pad(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    widths = [w for pair in reversed(node.attrs["widths"]) for w in pair]
    return b.call("pad_ext", b.cont(b.f32(x)), *widths, *(0,) * (2 * MAX_AXES - len(widths)))


@lowers("take", when=indices_are_i32(0, 1))
def _take(b: Builder, node: Tensor, x: Ptr, indices: Ptr) -> Ptr:
    source, index = node.source(0), node.source(1)
    rows = b.reshape(x, (len(source), source.size // len(source)))
    return b.reshape(b.call("get_rows", b.rows(rows), b.reshape(b.indices(node, indices), (index.size,))), node.shape)


@lowers("take_along", when=indices_are_i32(0, 1))
def _take_along(b: Builder, node: Tensor, x: Ptr, indices: Ptr) -> Ptr:
    source = node.source(0)
    n = source.size // source.shape[-1]
    columns = b.reshape(b.f32(x), (n, source.shape[-1], 1))  # rows of one element: ggml gathers rows
    indices = b.reshape(b.indices(node, indices), (n, node.shape[-1]))
    return b.reshape(b.call("get_rows", columns, indices), node.shape)


def _can_set_rows(node: Tensor) -> bool:
    """Whether ggml takes these indices: I32, or I64 that need no limit, as ggml has no arithmetic for them."""
    x, index = node.source(0), node.source(1)
    if index.dtype is DType.I64:
        return not x.dtype.is_integer and are_within(index, len(x))
    return indices_are_i32(0, 1)(node)


@lowers("set_rows", when=_can_set_rows)
def _set_rows(b: Builder, node: Tensor, x: Ptr, indices: Ptr, rows: Ptr) -> Ptr:
    """Write in place: the executable passes a copy if the old value of ``x`` is still needed."""
    values = b.f32(rows)
    if node.ndim == 2:
        return b.call("set_rows", x, b.rows(values), b.indices(node, indices))
    n, width = node.shape[0], node.size // node.shape[0]
    flat, values = b.reshape(x, (n, width)), b.reshape(values, (indices.ne[0], width))
    return b.reshape(b.call("set_rows", flat, b.rows(values), b.indices(node, indices)), node.shape)


@lowers("argsort")
def _argsort(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.argsort(b.rows(b.f32(x)), descending=node.attrs["descending"])


@lowers("top_k")
def _top_k(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.top_k(b.rows(b.f32(x)), node.attrs["k"])


@lowers("argmax")
def _argmax(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.reshape(b.row_argmax(b.rows(b.f32(x))), node.shape)


# Triangles and diagonals


def _is_triangle(node: Tensor) -> bool:
    """Whether the triangle is of a square matrix, with the diagonal or without."""
    offset = node.attrs["k"] * (1 if node.op == "tril" else -1)
    return node.dtype is DType.F32 and node.shape[-1] == node.shape[-2] and offset in (0, -1)


@lowers("tril", "triu", when=_is_triangle)
def _triangle(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    side = "LOWER" if node.op == "tril" else "UPPER"
    kind = f"GGML_TRI_TYPE_{side}" + ("" if node.attrs["k"] else "_DIAG")
    return b.call("tri", b.cont(b.f32(x)), getattr(b.g, kind))


@lowers("diag", when=lambda node: node.dtype is DType.F32)
def _diag(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.call("diag", b.rows(b.reshape(b.f32(x), (*node.shape[:-2], 1, node.shape[-1]))))
