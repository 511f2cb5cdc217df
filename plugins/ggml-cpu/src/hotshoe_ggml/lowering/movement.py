"""Lowerings of what moves elements and computes nothing."""

from __future__ import annotations

from hotshoe_core.dtypes import DType
from hotshoe_core.tensor import Tensor
from hotshoe_ggml.lowering.builder import MAX_AXES, Builder, Ptr, extents, indices_are_i32, lowers


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
    (x,) = node.sources
    assert x is not None
    return node.dtype in _REPEATED or node.size == x.size


@lowers("expand", when=_can_expand)
def _expand(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.repeat(b.cont(x), extents(node.shape))


@lowers("slice")
def _slice(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    slices = list(reversed(node.attrs["slices"]))
    nb, size = list(x.nb), node.dtype.block_size
    offset = sum(s.start // (size if i == 0 else 1) * nb[i] for i, s in enumerate(slices))
    for i, s in enumerate(slices):
        nb[i] *= s.step
    view = b.call("view_4d", x, *extents(node.shape), nb[1], nb[2], nb[3], offset)
    view.nb[0] = nb[0]  # ggml_view takes rows to be dense, which those of a transposed or stepped tensor are not
    return view


@lowers("concat")
def _concat(b: Builder, node: Tensor, *xs: Ptr) -> Ptr:
    axis = node.ndim - 1 - node.attrs["axis"]
    joined = b.cont(xs[0])
    for x in xs[1:]:
        joined = b.call("concat", joined, b.cont(x), axis)
    return joined


@lowers("pad")
def _pad(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    widths = [w for pair in reversed(node.attrs["widths"]) for w in pair]
    return b.call("pad_ext", b.cont(b.f32(x)), *widths, *(0,) * (2 * MAX_AXES - len(widths)))


@lowers("take", when=indices_are_i32(0, 1))
def _take(b: Builder, node: Tensor, x: Ptr, indices: Ptr) -> Ptr:
    source, at = node.sources[0], node.sources[1]
    assert source is not None
    assert at is not None
    rows = b.reshape(x, (len(source), source.size // len(source)))
    return b.reshape(b.call("get_rows", b.rows(rows), b.reshape(b.cont(indices), (at.size,))), node.shape)


@lowers("take_along", when=indices_are_i32(0, 1))
def _take_along(b: Builder, node: Tensor, x: Ptr, indices: Ptr) -> Ptr:
    source = node.sources[0]
    assert source is not None
    n = source.size // source.shape[-1]
    columns = b.reshape(b.f32(x), (n, source.shape[-1], 1))  # a row of one element each, for ggml gathers rows
    at = b.reshape(b.cont(indices), (n, node.shape[-1]))
    return b.reshape(b.call("get_rows", columns, at), node.shape)


@lowers("set_rows", when=indices_are_i32(0, 1))
def _set_rows(b: Builder, node: Tensor, x: Ptr, indices: Ptr, rows: Ptr) -> Ptr:
    """In place: the executable passes a copy where the source's old value must survive."""
    n, width = node.shape[0], node.size // node.shape[0]
    flat = b.reshape(x, (n, width))
    values = b.reshape(b.f32(rows), (indices.ne[0], width))
    return b.reshape(b.call("set_rows", flat, b.rows(values), b.cont(indices)), node.shape)


@lowers("argsort")
def _argsort(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    order = b.g.GGML_SORT_ORDER_DESC if node.attrs["descending"] else b.g.GGML_SORT_ORDER_ASC
    return b.call("argsort", b.cont(b.f32(x)), order)


@lowers("top_k")
def _top_k(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    return b.cont(b.call("argsort_top_k", b.cont(b.f32(x)), node.attrs["k"]))  # ggml_top_k does not order them


@lowers("argmax")
def _argmax(b: Builder, node: Tensor, x: Ptr) -> Ptr:
    (source,) = node.sources
    assert source is not None
    return b.reshape(b.call("argmax", b.reshape(b.f32(x), (-(-source.size // x.ne[0]), x.ne[0]))), node.shape)
