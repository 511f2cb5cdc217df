"""Matrix products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.ops.elementwise import where
from hotshoe_core.ops.rules import (
    F32,
    Array,
    broadcast,
    broadcast_rows,
    by_row,
    composite,
    leading_rows,
    primitive,
    require_float,
    require_integer,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape, Tensor, constant


def _matmul_rows(sources: Sequence[Tensor | None], attrs: Mapping[str, Any], shape: Shape) -> Sequence[int] | None:
    """The rows of a; with batch axes, those of both operands."""
    return (0,) if len(shape) == 2 else broadcast_rows(sources, attrs, shape)


@by_row(_matmul_rows)
def _matmul_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    a, b = args
    require_float(a)
    if b.dtype.is_quantized and not attrs["transpose"]:
        raise DTypeError(f"b is {b.dtype.name}: blocks run along its last axis, so only a @ b.T can use it")
    if b.dtype.is_integer:
        raise DTypeError(f"b is {b.dtype.name}; expected a float or quantized type")
    if a.ndim < 2 or b.ndim < 2:
        raise ShapeError("both operands must have two axes or more")
    if attrs["precision"] not in ("fast", "full"):
        raise ShapeError(f"precision is {attrs['precision']!r}; expected 'fast' or 'full'")
    k, n = (b.shape[-1], b.shape[-2]) if attrs["transpose"] else (b.shape[-2], b.shape[-1])
    if a.shape[-1] != k:
        axis = "last" if attrs["transpose"] else "second to last"
        raise ShapeError(f"a's last axis ({a.shape[-1]}) and b's {axis} axis ({k}) must agree")
    return (*broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], n), F32


@primitive(_matmul_rule)
def matmul(a: Array, b: Array, *, transpose: bool = False, precision: Literal["fast", "full"] = "fast") -> Array:
    """``a @ b`` over the last two axes, with the others broadcast; with ``transpose``, ``a @ b.T``.

    Shapes: a (..., m, k) and b (..., k, n), or (..., n, k) with ``transpose``, give (..., m, n). precision="full"
    accumulates in F32, even if the backend would otherwise use less.
    """
    return np.matmul(a, np.swapaxes(b, -1, -2) if transpose else b)


@by_row(leading_rows(0))
def _linear_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, weight = args
    require_float(x)
    if weight.dtype.is_integer:
        raise DTypeError(f"weight is {weight.dtype.name}; expected a float or quantized type")
    if weight.ndim != 2:
        raise ShapeError(f"weight must be (out, in); got {weight.ndim} axes")
    if not x.shape or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"x's last axis ({x.shape[-1] if x.shape else 'none'}) and weight's ({weight.shape[1]}) must agree"
        )
    return (*x.shape[:-1], weight.shape[0]), F32


@primitive(_linear_rule)
def linear(x: Array, weight: Array) -> Array:
    """``x @ weight.T``, for a weight as files store it. Shapes (..., in) and (out, in) give (..., out)."""
    return np.matmul(x, weight.T)


@by_row(leading_rows(0, 2))
def _linear_experts_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, weight, experts = args
    require_float(x)
    require_integer(experts)
    if weight.dtype.is_integer:
        raise DTypeError(f"weight is {weight.dtype.name}; expected a float or quantized type")
    if weight.ndim != 3:
        raise ShapeError(f"weight must be (n_experts, out, in); got {weight.ndim} axes")
    if x.ndim != 3 or experts.ndim != 2 or x.shape[0] != experts.shape[0] or x.shape[1] not in (1, experts.shape[1]):
        raise ShapeError("expected x (n, 1 or k, in) and experts (n, k)")
    if x.shape[-1] != weight.shape[-1]:
        raise ShapeError(f"x's last axis ({x.shape[-1]}) and weight's ({weight.shape[-1]}) must agree")
    return (*experts.shape, weight.shape[1]), F32


@primitive(_linear_experts_rule, indexed={"experts": ("weight", 0)})
def linear_experts(x: Array, weight: Array, experts: Array) -> Array:
    """``x[i, j] @ weight[experts[i, j]].T``: multiply each row by the expert that is chosen for it.

    Shapes x (n, 1 or k, in), weight (n_experts, out, in), experts (n, k) give (n, k, out).
    """
    x = np.broadcast_to(x, (*experts.shape, x.shape[-1]))
    out = np.empty((*experts.shape, weight.shape[1]), np.float32)
    for e in np.unique(experts):
        chosen = experts == e
        out[chosen] = x[chosen] @ weight[e].T
    return out


@by_row(leading_rows(0, 2))
def _add_experts_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, bias, experts = args
    require_float(x)
    require_integer(experts)
    if bias.dtype.is_integer:
        raise DTypeError(f"bias is {bias.dtype.name}; expected a float or quantized type")
    if x.ndim != 3 or experts.shape != x.shape[:2] or bias.ndim != 2 or bias.shape[1] != x.shape[2]:
        raise ShapeError("expected x (n, k, d), bias (n_experts, d) and experts (n, k)")
    return x.shape, F32


@composite(_add_experts_rule, indexed={"experts": ("bias", 0)})
def add_experts(x: Tensor, bias: Tensor, experts: Tensor) -> Tensor:
    """``x[i, j] + bias[experts[i, j]]``: add the biases of experts after ``linear_experts``.

    Shapes x (n, k, d), bias (n_experts, d), experts (n, k) give (n, k, d).
    """
    return x + bias.take(experts)


def _square_system(a: Tensor, b: Tensor, *, left: bool) -> None:
    require_float(a, b)
    if a.ndim < 2 or a.ndim != b.ndim or a.shape[-1] != a.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise ShapeError("expected a (..., n, n), and b with the same number of axes and the same batch axes")
    if b.shape[-2 if left else -1] != a.shape[-1]:
        form = "(..., n, k)" if left else "(..., k, n)"
        raise ShapeError(f"b must be {form} with n = {a.shape[-1]}; got {b.shape}")


def _solve_lower_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    _square_system(*args, left=True)
    return args[1].shape, F32


@primitive(_solve_lower_rule)
def solve_lower(a: Array, b: Array) -> Array:
    """Solve ``a @ X = b`` for a lower triangular ``a``. Elements above its diagonal are not read.

    Shapes: a (..., n, n) and b (..., n, k) give X (..., n, k). See ``solve_triangular`` for the general case.
    """
    x = np.zeros(b.shape, np.float32)
    for i in range(a.shape[-1]):
        rest = b[..., i, :] - (a[..., i : i + 1, :i] @ x[..., :i, :])[..., 0, :]
        x[..., i, :] = rest / a[..., i, i, None]
    return x


def _solve_triangular_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    _square_system(*args, left=attrs["left"])
    return args[1].shape, F32


@composite(_solve_triangular_rule)
def solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool = False, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Solve ``a @ X = b`` (``X @ a = b`` if not ``left``) for a triangular ``a``, as ``torch.linalg.solve_triangular``.

    Shapes: a (..., n, n) and b (..., n, k), or (..., k, n) if not ``left``, give X in b's shape. Only the lower
    triangle of a is read, or the upper one with ``upper``. With ``unitriangular``, its diagonal counts as 1.
    """
    if not left:
        a, b = _transposed(a), _transposed(b)
        return _transposed(solve_triangular(a, b, upper=not upper, unitriangular=unitriangular))
    if unitriangular:
        n = a.shape[-1]
        a = where(constant(np.eye(n, dtype=np.float32), "diagonal"), constant(np.float32(1)), a)
    if upper:  # in reverse order it is lower triangular
        return solve_lower(a.flip((-2, -1)), b.flip(-2)).flip(-2)
    return solve_lower(a, b)


def _transposed(x: Tensor) -> Tensor:
    return x.permute(*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
