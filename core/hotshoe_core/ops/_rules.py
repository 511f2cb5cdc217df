"""Decorators that add rows to the op table, and the shape and dtype rules rows share.

A rule takes the operands and the attributes, which it may normalise in place, and returns shape and
dtype. It raises ShapeError or DTypeError saying only why; Op adds what and where.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotshoe_core.dtypes import DType
from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.tensor import TABLE, Op, Rule, Shape, Tensor

F32, I32 = DType.F32, DType.I32


def primitive(rule: Rule) -> Callable[[Callable[..., Any]], Op]:
    """Add a row every backend must lower. The body computes it over NumPy arrays."""
    return lambda body: _add(Op(body, rule, composite=False))


def composite(rule: Rule, *, reference: Callable[..., Any] | None = None) -> Callable[[Callable[..., Any]], Op]:
    """Add a row core can decompose. The body is the decomposition, over Tensors; reference: see Op."""
    return lambda body: _add(Op(body, rule, composite=True, reference=reference))


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


def unary(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """Elementwise on one float operand."""
    require_float(args[0])
    return args[0].shape, F32


def along_last(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """On one float operand, along its last axis, which it must have."""
    require_axis(args[0].shape, -1)
    return unary(args, attrs)


def binary(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """Elementwise on two float operands that broadcast."""
    require_float(*args)
    return broadcast(args[0].shape, args[1].shape), F32


def reduction(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    """One axis reduced; normalises ``axis``."""
    (x,) = args
    require_float(x)
    axis = attrs["axis"] = require_axis(x.shape, attrs["axis"])
    kept = (1,) if attrs["keepdims"] else ()
    return x.shape[:axis] + kept + x.shape[axis + 1 :], F32
