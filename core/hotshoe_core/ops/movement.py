"""Primitives that move elements and compute nothing: shapes, slices, rows, order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.ops.rules import (
    F32,
    I32,
    Array,
    along_last,
    broadcast,
    broadcast_rows,
    by_row,
    primitive,
    require_axis,
    require_float,
    require_integer,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import round_to
from hotshoe_core.tensors.tensor import Shape, Tensor


def _same_rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
    """All operands, if the op does not change the first axis."""
    x = sources[0]
    if x is None or len(x.shape) < 2 or len(shape) < 2 or x.shape[0] != shape[0]:
        return None
    moved = attrs.get("axes", (0,))[0] != 0 or attrs.get("axis", 1) == 0
    cut = "slices" in attrs and attrs["slices"][0] != (0, shape[0], 1)
    return None if moved or cut else range(len(sources))


@by_row(_same_rows)
def _reshape_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    shape = attrs["shape"]
    if min(shape, default=1) < 1:
        shape = attrs["shape"] = _with_last_size(x, shape)
    if math.prod(shape) != x.size:
        raise ShapeError(f"{x.size} elements do not fit {shape}, which holds {math.prod(shape)}")
    x.dtype.nbytes(shape)
    return shape, x.dtype


def _with_last_size(x: Tensor, shape: Shape) -> Shape:
    """``shape`` with the size that -1 stands for. Raises ShapeError."""
    if shape.count(-1) > 1 or any(d < -1 or d == 0 for d in shape):
        raise ShapeError(f"cannot reshape to {shape}: sizes must be positive, and one may be -1")
    size, rest = divmod(x.size, -math.prod(shape))
    if rest:
        raise ShapeError(f"{x.size} elements do not fit {shape}")
    return tuple(size if d == -1 else d for d in shape)


@primitive(_reshape_rule, movement=True)
def reshape(x: Array, *, shape: Shape) -> Array:
    """The same elements in the same order, in another shape."""
    return np.reshape(x, shape)


@by_row(_same_rows)
def _permute_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    axes = tuple(require_axis(x.shape, a) for a in attrs["axes"])
    if sorted(axes) != list(range(x.ndim)):
        raise ShapeError(f"axes {tuple(attrs['axes'])} must contain each of {x.ndim} axes once")
    if x.dtype.is_quantized and axes[-1] != x.ndim - 1:
        raise DTypeError(f"x is {x.dtype.name}: its last axis holds blocks and must stay last")
    attrs["axes"] = axes
    return tuple(x.shape[a] for a in axes), x.dtype


@primitive(_permute_rule, movement=True)
def permute(x: Array, *, axes: tuple[int, ...]) -> Array:
    """The axes in another order, as ``numpy.transpose``."""
    return np.transpose(x, axes)


@by_row(broadcast_rows)
def _expand_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    shape = tuple(attrs["shape"])
    if len(shape) < x.ndim or min(shape, default=1) < 1 or broadcast(x.shape, shape) != shape:
        raise ShapeError(f"{x.shape} cannot be expanded to {shape}: only axes of size 1 repeat")
    attrs["shape"] = shape
    return shape, x.dtype


@primitive(_expand_rule, movement=True)
def expand(x: Array, *, shape: Shape) -> Array:
    """Repeat axes of size 1, as ``numpy.broadcast_to``."""
    return np.broadcast_to(x, shape)


@by_row(_same_rows)
def _slice_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    slices = attrs["slices"]
    if len(slices) != x.ndim:
        raise ShapeError(f"expected {x.ndim} slices, got {len(slices)}")
    shape = []
    for axis, ((start, stop, step), size) in enumerate(zip(slices, x.shape)):
        if not 0 <= start < stop <= size or step < 1:
            raise ShapeError(f"axis {axis} of size {size}: {start}:{stop}:{step} is empty or out of range")
        shape.append(-(-(stop - start) // step))
    if x.dtype.is_quantized:
        start, _, step = slices[-1]
        if step != 1 or start % x.dtype.block_size or shape[-1] % x.dtype.block_size:
            raise DTypeError(f"x is {x.dtype.name}: its last axis can be cut only between blocks")
    return tuple(shape), x.dtype


@primitive(_slice_rule, movement=True)
def slice_(x: Array, *, slices: tuple[tuple[int, int, int], ...]) -> Array:
    """``x[start:stop:step, ...]``, with one (start, stop, step) for each axis."""
    return x[tuple(slice(*s) for s in slices)]


@by_row(_same_rows)
def _concat_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    first = args[0]
    axis = attrs["axis"] = require_axis(first.shape, attrs["axis"])
    rest = {t.shape[:axis] + t.shape[axis + 1 :] for t in args}
    if len(rest) > 1 or len({t.ndim for t in args}) > 1:
        raise ShapeError(f"all axes except axis {axis} must agree")
    if len({t.dtype for t in args}) > 1:
        raise DTypeError("all operands must have the same element type", hint="cast them first: x.cast(F32)")
    n = sum(t.shape[axis] for t in args)
    return (*first.shape[:axis], n, *first.shape[axis + 1 :]), first.dtype


@primitive(_concat_rule)
def concat(*xs: Array, axis: int = 0) -> Array:
    """Join tensors along ``axis``, as ``numpy.concatenate``."""
    return np.concatenate(xs, axis)


def _pad_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    require_float(x)
    widths = tuple((int(a), int(b)) for a, b in attrs["widths"])
    if not x.ndim:
        raise ShapeError("x has no axes, so it cannot be padded")
    if len(widths) != x.ndim or any(a < 0 or b < 0 for a, b in widths):
        raise ShapeError(f"expected {x.ndim} pairs of widths >= 0, got {widths}")
    attrs["widths"] = widths
    return tuple(a + n + b for n, (a, b) in zip(x.shape, widths)), F32


@primitive(_pad_rule)
def pad(x: Array, *, widths: tuple[tuple[int, int], ...]) -> Array:
    """Add zeros before and after, with one pair of widths for each axis."""
    return np.pad(x, widths).astype(np.float32, copy=False)


def _take_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, indices = args
    require_integer(indices)
    if x.ndim < 2:
        raise ShapeError(f"x must have rows, that is two axes or more; got {x.ndim}")
    return (*indices.shape, *x.shape[1:]), x.dtype if x.dtype.is_integer else F32


@primitive(_take_rule, indexed={"indices": ("x", 0)})
def take(x: Array, indices: Array) -> Array:
    """``x[indices]`` along the first axis, as in an embedding. Quantized rows become F32.

    If the indices are an input or a constant, an index out of range is an error. If a graph computes them, the backend
    decides: the reference raises IndexError, others may take another row. No backend reads memory outside ``x``.
    """
    rows = np.take(x, indices, axis=0)
    return rows if np.issubdtype(rows.dtype, np.integer) else rows.astype(np.float32, copy=False)


@by_row(broadcast_rows)
def _take_along_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, indices = args
    require_float(x)
    require_integer(indices)
    if not x.shape or x.ndim != indices.ndim or x.shape[:-1] != indices.shape[:-1]:
        raise ShapeError("x and indices must agree in all axes except the last")
    return indices.shape, F32


@primitive(_take_along_rule, indexed={"indices": ("x", -1)})
def take_along(x: Array, indices: Array) -> Array:
    """``x[..., indices]`` row by row along the last axis: (..., n) and (..., k) give (..., k).

    As ``numpy.take_along_axis``. Indices out of range are handled as by ``take``.
    """
    return np.take_along_axis(x, indices, axis=-1)


def _set_rows_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, indices, rows = args
    require_integer(indices)
    require_float(rows)
    if x.dtype.is_integer:
        raise DTypeError(f"x is {x.dtype.name}; expected a float or quantized type")
    if indices.ndim != 1 or x.ndim < 2 or rows.shape != (*indices.shape, *x.shape[1:]):
        raise ShapeError(f"expected indices (n,) and rows {('n', *x.shape[1:])}".replace("'", ""))
    attrs["dtype"] = x.dtype
    return x.shape, x.dtype


@primitive(_set_rows_rule, indexed={"indices": ("x", 0)}, overwrites=True)
def set_rows(x: Array, indices: Array, rows: Array, *, dtype: DType = F32) -> Array:
    """A copy of ``x`` with ``x[indices[i]] = rows[i]``, rounded to x's type (``dtype``). Indices must not repeat."""
    out = np.array(x)
    out[indices] = round_to(rows, dtype)
    return out


def _set_slice_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, values = args
    cut, _ = _slice_rule((x,), attrs)
    if x.dtype.is_quantized:
        raise DTypeError(
            f"x is {x.dtype.name}; expected a type without blocks", hint="use set_rows, which writes whole rows"
        )
    if x.dtype.is_integer:
        if values.dtype is not x.dtype:
            raise DTypeError(f"values are {values.dtype.name}; expected {x.dtype.name}, the type of x")
    else:
        require_float(values)
    if values.shape != cut:
        raise ShapeError(f"values are {values.shape}; the slices select {cut}")
    attrs["dtype"] = x.dtype
    return x.shape, x.dtype


@primitive(_set_slice_rule, overwrites=True)
def set_slice(x: Array, values: Array, *, slices: tuple[tuple[int, int, int], ...], dtype: DType = F32) -> Array:
    """A copy of ``x`` with ``x[start:stop:step, ...] = values``, rounded to x's type (``dtype``).

    See ``Tensor.set``.
    """
    out = np.array(x)
    out[tuple(slice(*s) for s in slices)] = round_to(values, dtype)
    return out


@by_row(broadcast_rows)
def _argsort_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    return along_last(args, attrs)[0], I32


@primitive(_argsort_rule)
def argsort(x: Array, *, descending: bool = False) -> Array:
    """Indices that sort the last axis, each index once. NaNs are last. The order of equal elements is undefined."""
    return np.argsort(-x if descending else x, axis=-1, kind="stable").astype(np.int32)


@by_row(broadcast_rows)
def _top_k_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    along_last(args, attrs)
    if not 0 < attrs["k"] <= x.shape[-1]:
        raise ShapeError(f"k is {attrs['k']}; expected 1 to {x.shape[-1]}")
    return (*x.shape[:-1], attrs["k"]), I32


@primitive(_top_k_rule)
def top_k(x: Array, *, k: int) -> Array:
    """Indices of the ``k`` largest elements along the last axis, largest first, each index once.

    NaNs come last. Which of equal elements are chosen, and their order, is undefined.
    """
    return np.argsort(-x, axis=-1, kind="stable")[..., :k].astype(np.int32)


def _argmax_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    return along_last(args, attrs)[0][:-1], I32


@primitive(_argmax_rule)
def argmax(x: Array) -> Array:
    """Index of the largest element along the last axis: the first one if several are equal. NaN counts as largest."""
    return np.argmax(x, axis=-1).astype(np.int32)
