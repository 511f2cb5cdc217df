"""Elementwise ops: arithmetic and activations."""

from __future__ import annotations

import builtins
import math
from typing import Any, Literal

import numpy as np

from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.ops.rules import (
    Array,
    binary,
    binary_number,
    broadcast,
    broadcast_rows,
    by_row,
    common_type,
    comparison,
    composite,
    primitive,
    require_finite,
    require_float,
    unary,
    unary_number,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import round_to
from hotshoe_core.tensors.tensor import Shape, Tensor, constant


@primitive(binary_number)
def add(a: Array, b: Array) -> Array:
    """Sum, with NumPy broadcasting."""
    return np.add(a, b)


@primitive(binary_number)
def sub(a: Array, b: Array) -> Array:
    """Difference, with NumPy broadcasting."""
    return np.subtract(a, b)


@primitive(binary_number)
def mul(a: Array, b: Array) -> Array:
    """Product, with NumPy broadcasting."""
    return np.multiply(a, b)


@primitive(binary)
def div(a: Array, b: Array) -> Array:
    """Quotient, with NumPy broadcasting."""
    return np.divide(a, b)


@primitive(binary_number)
def floor_divide(a: Array, b: Array) -> Array:
    """``⌊a / b⌋``, with NumPy broadcasting. For integers, x // 0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):  # division by 0 is defined
        return np.floor_divide(a, b)


@primitive(binary_number)
def mod(a: Array, b: Array) -> Array:
    """``a - ⌊a / b⌋ b``, with the sign of ``b`` (``numpy.mod``), with NumPy broadcasting. For integers, x % 0 is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.mod(a, b)


@composite(binary_number)
def minimum(a: Tensor, b: Tensor) -> Tensor:
    """The smaller element of the two, with NumPy broadcasting; NaN if one is NaN."""
    return where(not_equal(a, a), a, where(less(a, b), a, b))


@composite(binary_number)
def maximum(a: Tensor, b: Tensor) -> Tensor:
    """The larger element of the two, with NumPy broadcasting; NaN if one is NaN."""
    return where(not_equal(a, a), a, where(less(b, a), a, b))


# Comparison: ones and zeros in F32, as a mask for products or ``where``. A comparison with NaN is false.


@primitive(comparison)
def equal(a: Array, b: Array) -> Array:
    """1 where ``a == b``, else 0, with NumPy broadcasting."""
    return np.equal(a, b).astype(np.float32)


@primitive(comparison)
def less(a: Array, b: Array) -> Array:
    """1 where ``a < b``, else 0, with NumPy broadcasting."""
    return np.less(a, b).astype(np.float32)


@primitive(comparison)
def less_equal(a: Array, b: Array) -> Array:
    """1 where ``a <= b``, else 0, with NumPy broadcasting."""
    return np.less_equal(a, b).astype(np.float32)


@composite(comparison)
def not_equal(a: Tensor, b: Tensor) -> Tensor:
    """1 where ``a != b``, else 0, with NumPy broadcasting. NaN is not equal to anything."""
    return 1 - equal(a, b)


@composite(comparison)
def greater(a: Tensor, b: Tensor) -> Tensor:
    """1 where ``a > b``, else 0, with NumPy broadcasting."""
    return less(b, a)


@composite(comparison)
def greater_equal(a: Tensor, b: Tensor) -> Tensor:
    """1 where ``a >= b``, else 0, with NumPy broadcasting."""
    return less_equal(b, a)


@by_row(broadcast_rows)
def _where_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    condition, a, b = args
    common_type(condition)
    return broadcast(condition.shape, a.shape, b.shape), common_type(a, b)


@primitive(_where_rule)
def where(condition: Array, a: Array, b: Array) -> Array:
    """``a`` where the condition is not 0, else ``b``, with NumPy broadcasting.

    It selects and does not compute: infinity or NaN in the operand that is not selected has no effect.
    """
    return np.where(condition, a, b)


@by_row(broadcast_rows)
def _affine_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    if math.isnan(attrs["scale"]) or math.isnan(attrs["bias"]):
        raise ShapeError(f"scale is {attrs['scale']}, bias {attrs['bias']}; expected numbers")
    return unary(args, attrs)


@primitive(_affine_rule)
def affine(x: Array, *, scale: float, bias: float) -> Array:
    """``scale * x + bias`` with Python numbers: ``x * 2``, ``x - 1`` and ``1 - x`` record this op."""
    return x * np.float32(scale) + np.float32(bias)


@primitive(unary)
def neg(x: Array) -> Array:
    """``-x``."""
    return np.negative(x)


@primitive(unary_number)
def abs_(x: Array) -> Array:
    """``|x|``."""
    return np.abs(x)


@primitive(unary)
def floor(x: Array) -> Array:
    """The largest whole number that is at most ``x``."""
    return np.floor(x)


@composite(unary)
def ceil(x: Tensor) -> Tensor:
    """The smallest whole number that is at least ``x``."""
    return -(-x).floor()


@primitive(unary)
def round_(x: Array) -> Array:
    """The nearest whole number; halves are rounded to the even one, as in ``numpy.round`` and IEEE 754."""
    return np.rint(x)


@composite(unary)
def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1 if ``x`` is less than, equal to or greater than 0; NaN stays NaN."""
    return where(not_equal(x, x), x, (x > 0) - (x < 0))


@primitive(unary)
def sqr(x: Array) -> Array:
    """``x²``."""
    return np.square(x)


@primitive(unary)
def sqrt(x: Array) -> Array:
    """Square root; NaN for negative numbers."""
    return np.sqrt(x)


@primitive(unary)
def exp(x: Array) -> Array:
    """``eˣ``."""
    return np.exp(x)


@primitive(unary)
def log(x: Array) -> Array:
    """Natural logarithm."""
    return np.log(x)


@primitive(unary)
def sin(x: Array) -> Array:
    """Sine; ``x`` is in radians."""
    return np.sin(x)


@primitive(unary)
def cos(x: Array) -> Array:
    """Cosine; ``x`` is in radians."""
    return np.cos(x)


@primitive(unary)
def tanh(x: Array) -> Array:
    """Hyperbolic tangent."""
    return np.tanh(x)


@primitive(unary)
def sigmoid(x: Array) -> Array:
    """``1 / (1 + e⁻ˣ)``."""
    e = np.exp(-np.abs(x))  # at most 1: it cannot overflow, and small values keep their digits
    return np.where(x < 0, e, np.float32(1)) / (1 + e)


@primitive(unary)
def softplus(x: Array) -> Array:
    """``log(1 + eˣ)``."""
    return np.logaddexp(x, np.float32(0))


@primitive(unary)
def relu(x: Array) -> Array:
    """``max(x, 0)``."""
    return np.maximum(x, np.float32(0))


@primitive(unary)
def silu(x: Array) -> Array:
    """``x * sigmoid(x)`` (Elfwing et al. 2017, arXiv:1702.03118)."""
    return x * sigmoid.body(x)


@primitive(unary)
def gelu(x: Array, *, approximate: Literal["none", "tanh", "quick"] = "none") -> Array:
    """Gaussian error linear unit (Hendrycks & Gimpel 2016, arXiv:1606.08415).

    ``approximate``: "none" is ``x/2 (1 + erf(x/√2))``; "tanh" and "quick" (``x * sigmoid(1.702 x)``) are the two
    approximations of the paper. "none" and "tanh" are named as in PyTorch.
    """
    if approximate == "tanh":
        inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
        return np.float32(0.5) * x * (np.float32(1) + np.tanh(inner))
    if approximate == "quick":
        return x * sigmoid.body(np.float32(1.702) * x)
    return (0.5 * x * (1 + _erf(x * math.sqrt(0.5)))).astype(np.float32)


def _erf(x: Array) -> Array:
    """erf with an error of 1.2e-7, by the rational Chebyshev fit of Numerical Recipes (2nd ed., § 6.2, ``erfcc``)."""
    z = np.abs(x).astype(np.float64)
    t = 1 / (1 + 0.5 * z)
    coefficients = (
        0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807,
        -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223,
    )  # fmt: skip
    y = 1 - t * np.exp(-z * z + np.polyval(coefficients, t))
    return np.copysign(y, x)


@by_row(broadcast_rows)
def _clamp_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    low, high = attrs["min"], attrs["max"]
    if not low <= high:
        raise ShapeError(f"min is {low}, max {high}; expected numbers with min <= max")
    (x,) = args
    if x.dtype.is_integer and any(math.isfinite(limit) and limit != int(limit) for limit in (low, high)):
        raise DTypeError(f"x is {x.dtype.name}: min {low} and max {high} must be whole numbers")
    return unary_number(args, attrs)


@primitive(_clamp_rule)
def clamp(x: Array, *, min: float = -math.inf, max: float = math.inf) -> Array:
    """``x`` limited to ``min .. max``. Integers stay integers."""
    if x.dtype.kind == "i":
        limits = np.iinfo(x.dtype)
        low, high = (builtins.min(builtins.max(limit, limits.min), limits.max) for limit in (min, max))
        return np.clip(x, int(low), int(high))
    return np.clip(x, np.float32(min), np.float32(max))


@by_row(broadcast_rows)
def _cast_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    (x,) = args
    dtype: DType = attrs["dtype"]
    if dtype.is_integer and not x.dtype.is_integer:
        raise DTypeError(f"cannot cast {x.dtype.name} to {dtype.name}: each backend rounds differently")
    dtype.nbytes(x.shape)  # raises if the last axis is not a whole number of blocks
    return x.shape, dtype


@primitive(_cast_rule)
def cast(x: Array, *, dtype: DType) -> Array:
    """Convert to another element type; quantized types lose precision."""
    return round_to(x, dtype)


@composite(unary)
def rsqrt(x: Tensor) -> Tensor:
    """``1 / √x``."""
    return reciprocal(x.sqrt())


@composite(unary)
def reciprocal(x: Tensor) -> Tensor:
    """``1 / x``."""
    return div(constant(np.ones((1,) * max(x.ndim, 1), np.float32), "one"), x)


@by_row(broadcast_rows)
def _gated_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    gate, up = args
    require_float(gate, up)
    if gate.shape != up.shape:
        raise ShapeError(f"gate and up must have the same shape; got {gate.shape} and {up.shape}")
    return broadcast(gate.shape, up.shape), DType.F32


@composite(_gated_rule)
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """``silu(gate) * up`` (Shazeer 2020, arXiv:2002.05202)."""
    return gate.silu() * up


@by_row(broadcast_rows)
def _clamped_swiglu_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    require_finite(attrs, "alpha", "limit")
    if attrs["limit"] < 0:
        raise ShapeError(f"limit is {attrs['limit']}; expected 0 or more")
    return _gated_rule(args, attrs)


@composite(_clamped_swiglu_rule)
def clamped_swiglu(gate: Tensor, up: Tensor, *, alpha: float = 1.702, limit: float = 7.0) -> Tensor:
    """``g * sigmoid(alpha g) * (u + 1)`` with ``g = min(gate, limit)`` and u = up limited to ``±limit`` (gpt-oss)."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * (gate * alpha).sigmoid() * (up + 1)


@composite(_gated_rule)
def geglu(gate: Tensor, up: Tensor, *, approximate: Literal["none", "tanh", "quick"] = "tanh") -> Tensor:
    """``gelu(gate) * up`` (Shazeer 2020, arXiv:2002.05202)."""
    return gate.gelu(approximate) * up


@composite(_gated_rule)
def reglu(gate: Tensor, up: Tensor) -> Tensor:
    """``relu(gate) * up`` (Shazeer 2020, arXiv:2002.05202)."""
    return gate.relu() * up
