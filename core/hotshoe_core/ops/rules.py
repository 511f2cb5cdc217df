"""Decorators that add rows to the op table, and the shape and dtype rules that several ops share.

A rule takes the operands and the attributes and returns shape and dtype. It may normalise the attributes in place. Its
ShapeError or DTypeError says only why; Op adds which op, which operands and where.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.op import Op, RowOperands
from hotshoe_core.tensors.tensor import TABLE, Axis, Rule, Shape, Tensor

F32, I32 = DType.F32, DType.I32
Array = np.ndarray[Any, Any]
Sizes = int | Sequence[int]  # one integer for all spatial axes, or one for each

Row = Callable[[Callable[..., Any]], Op]
_ROW_OPERANDS: dict[Rule, RowOperands] = {}


def by_row(operands: RowOperands) -> Callable[[Rule], Rule]:
    """Declare that the ops of a rule work row by row along the first axis.

    operands: from (sources, attrs, shape of the result), the positions of the operands whose row i alone determines row
    i of the result; any other operand is read in full for each row. None: this use of the op mixes rows.
    """

    def register(rule: Rule) -> Rule:
        _ROW_OPERANDS[rule] = operands
        return rule

    return register


def broadcast_rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
    """For ops that work by element or along the last axis: the operands that have rows and are not broadcast."""
    if len(shape) < 2:
        return None
    return [i for i, t in enumerate(sources) if t is not None and t.ndim == len(shape) and t.shape[0] == shape[0]]


def leading_rows(*operands: int) -> RowOperands:
    """For ops that go through the rows of these operands, if the first of them has two axes or more."""

    def rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
        first = sources[operands[0]]
        return operands if first is not None and first.ndim > 1 else None

    return rows


def primitive(
    rule: Rule,
    *,
    indexed: Mapping[str, tuple[str, int]] | None = None,
    movement: bool = False,
    overwrites: bool = False,
) -> Row:
    """Add an op that every backend must lower. The body computes it over NumPy arrays.

    indexed: for each operand that holds indices, the operand that they index and its axis. movement and overwrites:
    see Op.
    """
    flags = {"indexed": indexed, "movement": movement, "overwrites": overwrites}
    return lambda body: _add(Op(body, rule, composite=False, by_row=_ROW_OPERANDS.get(rule), **flags))  # type: ignore[arg-type]


def composite(
    rule: Rule,
    *,
    indexed: Mapping[str, tuple[str, int]] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Row:
    """Add an op that core can decompose. The body is the decomposition, over Tensors. reference: see Op."""
    rows = _ROW_OPERANDS.get(rule)
    return lambda body: _add(Op(body, rule, composite=True, by_row=rows, indexed=indexed, reference=reference))


def _add(op: Op) -> Op:
    if op.name in TABLE:
        raise ValueError(f"op {op.name} is in the table twice")
    TABLE[op.name] = op
    return op


def require_float(*tensors: Tensor | None) -> None:
    """Raise DTypeError unless all tensors that are given are of a float type."""
    for t in tensors:
        if t is not None and not t.dtype.is_float:
            raise DTypeError(f"expected float operands, got {t.dtype.name}", hint="cast it first: x.cast(F32)")


def require_integer(t: Tensor) -> None:
    """Raise DTypeError unless ``t``, which holds indices, is I32 or I64."""
    if t.dtype not in (DType.I32, DType.I64):
        raise DTypeError(f"expected I32 or I64 indices, got {t.dtype.name}")


def require_axis(shape: Shape, axis: int) -> int:
    """The axis counted from 0. Raises ShapeError if it is out of range."""
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"axis {axis} is out of range for {len(shape)} axes")
    return axis % len(shape)


def broadcast(*shapes: Shape) -> Shape:
    """The shape that NumPy broadcasts these shapes to. Raises ShapeError if they do not broadcast."""
    if all(s == shapes[0] for s in shapes):  # most operands of a model
        return shapes[0]
    out: list[int] = []
    for i in range(1, max(map(len, shapes)) + 1):
        sizes = {s[-i] for s in shapes if len(s) >= i} - {1}
        if len(sizes) > 1:
            raise ShapeError(f"shapes do not broadcast: axis {-i} has sizes {sorted(sizes)}")
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def require_finite(attrs: Mapping[str, Any], *names: str) -> None:
    """Raise ShapeError unless these attributes are finite."""
    for name in names:
        if not math.isfinite(attrs[name]):
            raise ShapeError(f"{name} is {attrs[name]}; expected a finite number")


def require_eps(attrs: Mapping[str, Any]) -> None:
    """Raise ShapeError unless the attribute ``eps`` is finite and not negative."""
    if not (math.isfinite(attrs["eps"]) and attrs["eps"] >= 0):
        raise ShapeError(f"eps is {attrs['eps']}; expected a finite number of 0 or more")


@by_row(broadcast_rows)
def unary(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """Elementwise on one float operand."""
    require_float(args[0])
    return args[0].shape, F32


@by_row(broadcast_rows)
def unary_number(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """Elementwise on one operand, float or integer."""
    return args[0].shape, common_type(*args)


@by_row(broadcast_rows)
def along_last(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """One float operand, along its last axis; the shape is kept."""
    require_axis(args[0].shape, -1)
    return unary(args, attrs)


@by_row(broadcast_rows)
def binary(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """Elementwise on two float operands that broadcast."""
    require_float(*args)
    return broadcast(args[0].shape, args[1].shape), F32


def common_type(*tensors: Tensor) -> DType:
    """The type of arithmetic on these: F32 for floats, or the integer type that all of them have. Raises DTypeError."""
    first = tensors[0].dtype
    if first in (I32, DType.I64) and all(t.dtype is first for t in tensors):
        return first
    if any(t.dtype.is_integer for t in tensors):
        types = ", ".join(t.dtype.name for t in tensors)
        raise DTypeError(f"expected floats, or integers of one type, I32 or I64; got {types}", hint="cast: x.cast(F32)")
    require_float(*tensors)
    return F32


@by_row(broadcast_rows)
def binary_number(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """Elementwise on two operands that broadcast: floats, or integers of one type."""
    return broadcast(args[0].shape, args[1].shape), common_type(*args)


@by_row(broadcast_rows)
def comparison(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """As binary_number, but the result is ones and zeros in F32."""
    return binary_number(args, attrs)[0], F32


def require_axes(shape: Shape, axis: Axis) -> tuple[int, ...]:
    """One axis, several axes, or all (None), counted from 0 and sorted. Raises ShapeError for an invalid axis."""
    if axis is None:
        return tuple(range(len(shape)))
    axes = sorted(require_axis(shape, a) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    if len(set(axes)) < len(axes):
        raise ShapeError(f"axes {axis} contain an axis twice")
    return tuple(axes)


def _reduced_rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
    return None if 0 in attrs["axis"] else (0,)


@by_row(_reduced_rows)
def reduction(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """Reduce one axis, several or all of them; normalises ``axis`` to a tuple."""
    (x,) = args
    require_float(x)
    axes = attrs["axis"] = require_axes(x.shape, attrs["axis"])
    if attrs["keepdims"]:
        return tuple(1 if i in axes else d for i, d in enumerate(x.shape)), F32
    return tuple(d for i, d in enumerate(x.shape) if i not in axes), F32
