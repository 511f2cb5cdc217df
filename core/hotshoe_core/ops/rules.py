"""Decorators that add rows to the op table, and the shape and dtype rules rows share.

A rule takes the operands and the attributes, which it may normalise in place, and returns shape and
dtype. It raises ShapeError or DTypeError saying only why; Op adds what and where.
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
    """Say of a rule's ops that a row of the result, along its first axis, comes of one row of some operands.

    operands: gives the positions of those for (sources, attrs, shape of the result); all of any other operand is read
    for each row. None: this use is not row by row.
    """

    def register(rule: Rule) -> Rule:
        _ROW_OPERANDS[rule] = operands
        return rule

    return register


def broadcast_rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
    """Of ops that work element by element, or along the last axis: the operands that are not repeated for each row."""
    if len(shape) < 2:
        return None
    return [i for i, t in enumerate(sources) if t is not None and t.ndim == len(shape) and t.shape[0] == shape[0]]


def leading_rows(*operands: int) -> RowOperands:
    """These operands, where the first of them has rows."""

    def rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
        first = sources[operands[0]]
        assert first is not None
        return operands if first.ndim > 1 else None

    return rows


def primitive(
    rule: Rule,
    *,
    indexed: Mapping[str, tuple[str, int]] | None = None,
    movement: bool = False,
    overwrites: bool = False,
) -> Row:
    """Add a row every backend must lower. The body computes it over NumPy arrays.

    indexed: for each operand that holds indices, the operand and the axis that they count along. movement and
    overwrites: see Op.
    """
    flags = {"indexed": indexed, "movement": movement, "overwrites": overwrites}
    return lambda body: _add(Op(body, rule, composite=False, by_row=_ROW_OPERANDS.get(rule), **flags))  # type: ignore[arg-type]


def composite(
    rule: Rule,
    *,
    indexed: Mapping[str, tuple[str, int]] | None = None,
    reference: Callable[..., Any] | None = None,
) -> Row:
    """Add a row core can decompose. The body is the decomposition, over Tensors; reference: see Op."""
    rows = _ROW_OPERANDS.get(rule)
    return lambda body: _add(Op(body, rule, composite=True, by_row=rows, indexed=indexed, reference=reference))


def _add(op: Op) -> Op:
    if op.name in TABLE:
        raise ValueError(f"op {op.name} is in the table twice")
    TABLE[op.name] = op
    return op


def require_float(*tensors: Tensor | None) -> None:
    for t in tensors:
        if t is not None and not t.dtype.is_float:
            raise DTypeError(f"expected float operands, got {t.dtype.name}", hint="cast it first: x.cast(F32)")


def require_integer(t: Tensor) -> None:
    if t.dtype not in (DType.I32, DType.I64):
        raise DTypeError(f"expected I32 or I64 indices, got {t.dtype.name}")


def require_axis(shape: Shape, axis: int) -> int:
    if not -len(shape) <= axis < len(shape):
        raise ShapeError(f"axis {axis} is out of range for {len(shape)} axes")
    return axis % len(shape)


def broadcast(*shapes: Shape) -> Shape:
    """The shape NumPy broadcasts these to."""
    out: list[int] = []
    for i in range(1, max(map(len, shapes)) + 1):
        sizes = {s[-i] for s in shapes if len(s) >= i} - {1}
        if len(sizes) > 1:
            raise ShapeError(f"shapes do not broadcast: axis {-i} has sizes {sorted(sizes)}")
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def require_finite(attrs: Mapping[str, Any], *names: str) -> None:
    for name in names:
        if not math.isfinite(attrs[name]):
            raise ShapeError(f"{name} is {attrs[name]}; expected a finite number")


def require_eps(attrs: Mapping[str, Any]) -> None:
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
    """On one float operand, along its last axis, which it must have."""
    require_axis(args[0].shape, -1)
    return unary(args, attrs)


@by_row(broadcast_rows)
def binary(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """Elementwise on two float operands that broadcast."""
    require_float(*args)
    return broadcast(args[0].shape, args[1].shape), F32


def common_type(*tensors: Tensor) -> DType:
    """What arithmetic of these gives: F32 of floats, or the one integer type they have."""
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
    """As binary_number, but the answer is ones and zeros."""
    return binary_number(args, attrs)[0], F32


def require_axes(shape: Shape, axis: Axis) -> tuple[int, ...]:
    """One axis, several, or all (None), as numbers from 0, in order."""
    if axis is None:
        return tuple(range(len(shape)))
    axes = sorted(require_axis(shape, a) for a in (axis if isinstance(axis, (tuple, list)) else (axis,)))
    if len(set(axes)) < len(axes):
        raise ShapeError(f"axes {axis} name one twice")
    return tuple(axes)


def _reduced_rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
    return None if 0 in attrs["axis"] else (0,)


@by_row(_reduced_rows)
def reduction(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """One axis, several or all of them reduced; normalises ``axis`` to a tuple."""
    (x,) = args
    require_float(x)
    axes = attrs["axis"] = require_axes(x.shape, attrs["axis"])
    if attrs["keepdims"]:
        return tuple(1 if i in axes else d for i, d in enumerate(x.shape)), F32
    return tuple(d for i, d in enumerate(x.shape) if i not in axes), F32
