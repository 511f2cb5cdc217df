"""Composites that arrange elements: repeating, rolling, reversing, stacking, triangles and diagonals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.ops.elementwise import equal, where
from hotshoe_core.ops.movement import concat
from hotshoe_core.ops.rules import F32, I32, common_type, composite, require_axes, require_axis, require_integer
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Axis, Shape, Tensor, constant

# Repeated


def _tile_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    reps = tuple(attrs["reps"])
    if any(n < 1 for n in reps):
        raise ShapeError(f"reps are {reps}; expected numbers of 1 or more")
    ndim = max(len(reps), x.ndim)
    reps = attrs["reps"] = (1,) * (ndim - len(reps)) + reps
    shape = (1,) * (ndim - x.ndim) + x.shape
    return tuple(d * n for d, n in zip(shape, reps)), x.dtype


@composite(_tile_rule)
def tile(x: Tensor, *, reps: tuple[int, ...]) -> Tensor:
    """Repeat the whole tensor ``reps[i]`` times along each axis, as ``numpy.tile``: [1, 2] by 2 is [1, 2, 1, 2]."""
    y = x.reshape(*(1,) * (len(reps) - x.ndim), *x.shape)
    for axis, n in enumerate(reps):
        if n > 1:
            before, d, after = _around(y.shape, axis)
            wide = y.reshape(before, 1, d * after).expand(before, n, d * after)
            y = wide.reshape(*y.shape[:axis], n * d, *y.shape[axis + 1 :])
    return y


def _repeat_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    axis = attrs["axis"] = require_axis(x.shape, attrs["axis"])
    if attrs["repeats"] < 1:
        raise ShapeError(f"repeats is {attrs['repeats']}; expected 1 or more")
    if x.dtype.is_quantized and axis == x.ndim - 1:
        raise DTypeError(f"x is {x.dtype.name}: its last axis holds blocks and cannot be repeated")
    return (*x.shape[:axis], x.shape[axis] * attrs["repeats"], *x.shape[axis + 1 :]), x.dtype


@composite(_repeat_rule)
def repeat(x: Tensor, *, repeats: int, axis: int = -1) -> Tensor:
    """Repeat each element ``repeats`` times along ``axis``, as ``numpy.repeat``: [1, 2] by 2 is [1, 1, 2, 2]."""
    before, d, after = _around(x.shape, axis)
    wide = x.reshape(before, d, 1, after).expand(before, d, repeats, after)
    return wide.reshape(*x.shape[:axis], d * repeats, *x.shape[axis + 1 :])


def _around(shape: Shape, axis: int) -> tuple[int, int, int]:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


# In another order


def _roll_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    axis = attrs["axis"] = require_axis(x.shape, attrs["axis"])
    if x.dtype.is_quantized and axis == x.ndim - 1:
        raise DTypeError(f"x is {x.dtype.name}: its last axis holds blocks and cannot be rolled")
    attrs["shift"] %= x.shape[axis]
    return x.shape, x.dtype


@composite(_roll_rule)
def roll(x: Tensor, *, shift: int, axis: int = -1) -> Tensor:
    """Move elements by ``shift`` along ``axis``; those that leave at the end come in at the start (``numpy.roll``)."""
    if not shift:
        return x.reshape(*x.shape)
    before = (slice(None),) * axis
    end, start = x[before + (slice(-shift, None),)], x[before + (slice(None, -shift),)]  # noqa: RUF005
    return concat(end, start, axis=axis)


def _flip_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    attrs["axis"] = require_axes(x.shape, attrs["axis"])
    if x.dtype.is_quantized:
        raise DTypeError(f"x is {x.dtype.name}: blocks cannot be reversed", hint="cast it first: x.cast(F32)")
    return x.shape, x.dtype


@composite(_flip_rule)
def flip(x: Tensor, *, axis: Axis = None) -> Tensor:
    """Reverse the order of elements along ``axis``: one, several or all (None), as ``numpy.flip``."""
    y = x
    for a in require_axes(x.shape, axis):
        n = y.shape[a]
        order = (a, *(i for i in range(y.ndim) if i != a))  # take works along the first axis
        rows = y.permute(*order)
        reverse = constant(np.arange(n - 1, -1, -1, dtype=np.int32), "reverse")
        rows = rows.reshape(n, -1).take(reverse).reshape(*rows.shape)
        y = rows.permute(*(order.index(i) for i in range(y.ndim)))
    return x.reshape(*x.shape) if y is x else y.cast(x.dtype)


def _stack_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    first = args[0]
    attrs["axis"] = require_axis((*first.shape, 1), attrs["axis"])
    if len({t.shape for t in args}) > 1:
        raise ShapeError("all operands must have the same shape")
    if len({t.dtype for t in args}) > 1:
        raise DTypeError("all operands must have the same element type", hint="cast them first: x.cast(F32)")
    if first.dtype.is_quantized and attrs["axis"] == first.ndim:
        raise DTypeError(f"operands are {first.dtype.name}: their last axis holds blocks and must stay last")
    axis = attrs["axis"]
    return (*first.shape[:axis], len(args), *first.shape[axis:]), first.dtype


@composite(_stack_rule)
def stack(*xs: Tensor, axis: int = 0) -> Tensor:
    """Join tensors along a new axis, as ``numpy.stack``."""
    return concat(*(x.reshape(*x.shape[:axis], 1, *x.shape[axis:]) for x in xs), axis=axis)


# Triangles and diagonals


def _triangle_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    if x.ndim < 2:
        raise ShapeError(f"x must be (..., n, m); got {x.ndim} axes")
    return x.shape, common_type(x)


@composite(_triangle_rule)
def tril(x: Tensor, *, k: int = 0) -> Tensor:
    """The lower triangle: zeros where ``j > i + k`` in the last two axes (..., i, j), as ``numpy.tril``."""
    return where(_lower(x.shape, k), x, _zero(x))


@composite(_triangle_rule)
def triu(x: Tensor, *, k: int = 0) -> Tensor:
    """The upper triangle: zeros where ``j < i + k`` in the last two axes (..., i, j), as ``numpy.triu``."""
    return where(_lower(x.shape, k - 1), _zero(x), x)


def _diag_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    require_axis(x.shape, -1)
    return (*x.shape, x.shape[-1]), common_type(x)


@composite(_diag_rule)
def diag(x: Tensor) -> Tensor:
    """Matrices with the last axis on their diagonal and zeros elsewhere: (..., n) gives (..., n, n)."""
    n = x.shape[-1]
    return where(constant(np.eye(n, dtype=np.float32), "diagonal"), x.reshape(*x.shape[:-1], 1, n), _zero(x))


def _lower(shape: Shape, k: int) -> Tensor:
    n, m = shape[-2:]
    return constant(np.tri(n, m, k, dtype=np.float32), "lower")


def _zero(x: Tensor) -> Tensor:
    return constant(np.zeros((), x.dtype.numpy if x.dtype.is_integer else np.float32), "zero")


def _one_hot_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (indices,) = args
    require_integer(indices)
    if attrs["n"] < 1:
        raise ShapeError(f"n is {attrs['n']}; expected 1 or more")
    return (*indices.shape, attrs["n"]), F32


@composite(_one_hot_rule)
def one_hot(indices: Tensor, *, n: int) -> Tensor:
    """Rows of zeros with a 1 at each index: (...) gives (..., n). An index out of range gives a row of zeros."""
    return equal(indices.reshape(*indices.shape, 1), arange(n, dtype=indices.dtype))


# Constants. These are functions, not ops: the values are known when the graph is built.


def arange(start: float, stop: float | None = None, step: float = 1, *, dtype: DType = I32) -> Tensor:
    """A constant ``start, start + step, …`` below ``stop``, as ``numpy.arange``; ``arange(n)`` starts at 0."""
    start, stop = (0, start) if stop is None else (start, stop)
    if not step:
        raise ShapeError("arange: step is 0")
    return constant(np.arange(start, stop, step, dtype=_numpy_dtype("arange", dtype)), "arange")


def full(shape: Shape, value: float, *, dtype: DType = F32) -> Tensor:
    """A constant filled with ``value``. It takes the memory of one element until an op needs the whole tensor."""
    return constant(np.asarray(value, _numpy_dtype("full", dtype)), str(value)).expand(*shape)


def zeros(shape: Shape, *, dtype: DType = F32) -> Tensor:
    """A constant filled with 0."""
    return full(shape, 0, dtype=dtype)


def ones(shape: Shape, *, dtype: DType = F32) -> Tensor:
    """A constant filled with 1."""
    return full(shape, 1, dtype=dtype)


def _numpy_dtype(what: str, dtype: DType) -> np.dtype[Any]:
    if dtype.numpy is None:
        raise DTypeError(f"{what}: NumPy has no type for {dtype.name}", hint="make an F32 tensor and cast it")
    return dtype.numpy
