"""The op table over ``mlx.core``: one function for each primitive. ``_fused`` has MLX's fused composites.

Arithmetic gives F32; ops that move elements keep their type. A weight may be ``Packed``; functions that cannot use
groups dequantize it first.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import mlx.core as mx

from hotshoe_core.errors import DTypeError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_mlx._packed import Packed

__all__ = ["DTYPES", "arithmetic", "dense", "f32", "functions", "mlx_dtype", "round_to"]

Array: TypeAlias = mx.array
Slices = tuple[tuple[int, int, int], ...]

DTYPES = {
    DType.F32: mx.float32,
    DType.F16: mx.float16,
    DType.BF16: mx.bfloat16,
    DType.I8: mx.int8,
    DType.I16: mx.int16,
    DType.I32: mx.int32,
    DType.I64: mx.int64,
    DType.F64: mx.float64,
}
_SORTED_FROM = 64  # choices of experts: sorting fewer costs more than it saves
_INTEGERS = (mx.int8, mx.int16, mx.int32, mx.int64)


def mlx_dtype(dtype: DType, *, gpu: bool) -> mx.Dtype:
    """The MLX type for an element type. Quantized blocks become F32; so does F64 on a GPU, which lacks it."""
    return mx.float32 if gpu and dtype is DType.F64 else DTYPES.get(dtype, mx.float32)


def dense(x: Any) -> Any:
    """Dequantize a packed weight to F32; return any other value unchanged."""
    return x.dequantize() if isinstance(x, Packed) else x


def f32(x: Any) -> Any:
    """Convert a float array to F32; return integers and None unchanged."""
    x = dense(x)
    return x if x is None or x.dtype in _INTEGERS else x.astype(mx.float32)


def arithmetic(function: Callable[..., Array]) -> Callable[..., Array]:
    """``function`` with its float operands converted to F32."""

    @functools.wraps(function)
    def call(*arrays: Any, **attrs: Any) -> Array:
        return function(*map(f32, arrays), **attrs)

    return call


def movement(function: Callable[..., Array]) -> Callable[..., Array]:
    """``function`` with its packed operands dequantized; other types are kept."""

    @functools.wraps(function)
    def call(*arrays: Any, **attrs: Any) -> Array:
        return function(*map(dense, arrays), **attrs)

    return call


# Elementwise


def floor_divide(a: Array, b: Array) -> Array:
    if a.dtype in _INTEGERS:
        quotient = a // b  # rounded towards zero on some devices
        rest = a - quotient * b
        return quotient - ((rest != 0) & ((rest < 0) != (b < 0))).astype(a.dtype)
    rest = mod(a, b)
    quotient = mx.round((a - rest) / b)
    quotient = mx.where(mx.isinf(b) & ~mx.isinf(a) & ~mx.isnan(a), mx.where(rest == a, 0.0, -1.0), quotient)
    return mx.where(b == 0, a / b, quotient)


def mod(a: Array, b: Array) -> Array:
    rest = mx.remainder(a, b)
    if a.dtype in _INTEGERS:
        return rest
    by_infinity = mx.where((a == 0) | ((a < 0) == (b < 0)), a, b)
    return mx.where(mx.isinf(b) & ~mx.isinf(a) & ~mx.isnan(a), by_infinity, rest)


def gelu(x: Array, *, approximate: str) -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    if approximate == "quick":
        return x * mx.sigmoid(1.702 * x)
    return 0.5 * x * (1 + mx.erf(x * math.sqrt(0.5)))


def clamp(x: Array, *, min: float, max: float) -> Array:
    if x.dtype in _INTEGERS:
        limits = mx.iinfo(x.dtype)
        low, high = (int(_within(v, limits.min, limits.max)) for v in (min, max))
        return mx.clip(x, mx.array(low, x.dtype), mx.array(high, x.dtype))
    return mx.clip(x, min, max)


def _within(value: float, low: int, high: int) -> float:
    return low if value < low else high if value > high else value


def where(condition: Array, a: Array, b: Array) -> Array:
    return mx.where(condition != 0, a, b)


def _comparison(compare: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    return arithmetic(lambda a, b: compare(a, b).astype(mx.float32))


def round_to(x: Array, dtype: DType, *, gpu: bool) -> Array:
    """The values that ``dtype`` would store for ``x``.

    Raises DTypeError for a quantized type without a formula here.
    """
    if not dtype.is_quantized:
        return x.astype(mlx_dtype(dtype, gpu=gpu))
    if dtype not in _BLOCKS:
        raise DTypeError(
            f"MLX cannot round to {dtype.name}", hint=f"use one of {', '.join(d.name for d in _BLOCKS)}, or F16"
        )
    blocks = x.astype(mx.float32).reshape(*x.shape[:-1], -1, 32)
    return _BLOCKS[dtype](blocks).reshape(x.shape)


def _inverse(scale: Array) -> Array:
    return mx.where(scale == 0, 0.0, 1 / scale)


def _half(x: Array) -> Array:
    """Round to float16, as the header of a block does."""
    return x.astype(mx.float16).astype(mx.float32)


def _away_from_zero(x: Array) -> Array:
    """Round to the nearest whole number, halves away from zero, as C's roundf."""
    whole = mx.floor(mx.abs(x))
    return mx.sign(x) * (whole + (mx.abs(x) - whole >= 0.5))


def _q8_0(x: Array) -> Array:
    scale = mx.max(mx.abs(x), axis=-1, keepdims=True) / 127
    return _away_from_zero(x * _inverse(scale)) * _half(scale)


def _symmetric(bits: int) -> Callable[[Array], Array]:
    """Q4_0 and Q5_0: the element with the largest magnitude gets the lowest code."""
    half = 1 << (bits - 1)

    def rounded(x: Array) -> Array:
        largest = mx.argmax(mx.abs(x), axis=-1, keepdims=True)
        scale = mx.take_along_axis(x, largest, axis=-1) / -half
        code = mx.clip(mx.floor(x * _inverse(scale) + (half + 0.5)), 0, 2 * half - 1)
        return (code - half) * _half(scale)

    return rounded


def _with_minimum(bits: int) -> Callable[[Array], Array]:
    """Q4_1 and Q5_1: codes from the smallest element to the largest."""
    most = (1 << bits) - 1

    def rounded(x: Array) -> Array:
        low, high = mx.min(x, axis=-1, keepdims=True), mx.max(x, axis=-1, keepdims=True)
        scale = (high - low) / most
        code = mx.clip(mx.floor((x - low) * _inverse(scale) + 0.5), 0, most)
        return code * _half(scale) + _half(low)

    return rounded


def _mxfp4(x: Array) -> Array:
    """The scale is a power of two. Each element becomes the nearest of eight magnitudes; in a tie, the smaller one."""
    largest = mx.max(mx.abs(x), axis=-1, keepdims=True)
    exponent = mx.floor(mx.log2(mx.where(largest == 0, 1.0, largest)))
    exponent = exponent + (mx.power(2.0, exponent + 1) <= largest) - (mx.power(2.0, exponent) > largest)  # log2 rounds
    scale = mx.where(largest == 0, 0.0, mx.power(2.0, exponent - 2))
    scaled = mx.abs(x) * _inverse(scale)
    steps = ((0.25, 0.5), (0.75, 0.5), (1.25, 0.5), (1.75, 0.5), (2.5, 1.0), (3.5, 1.0), (5.0, 2.0))
    magnitude = sum(((scaled > middle) * step for middle, step in steps), start=mx.zeros_like(scaled))
    return mx.where(x < 0, -magnitude, magnitude) * scale


_BLOCKS: dict[DType, Callable[[Array], Array]] = {
    DType.Q8_0: _q8_0,
    DType.Q4_0: _symmetric(4),
    DType.Q4_1: _with_minimum(4),
    DType.Q5_0: _symmetric(5),
    DType.Q5_1: _with_minimum(5),
    DType.MXFP4: _mxfp4,
}

# Products


def linear(x: Array, weight: Any, *, gpu: bool) -> Array:
    if isinstance(weight, Packed):
        return weight.multiply(x)
    return _product(x, mx.swapaxes(weight, -1, -2), half=gpu)


def matmul(a: Array, b: Any, *, transpose: bool, precision: str, gpu: bool) -> Array:
    if isinstance(b, Packed) and b.ndim == 2:  # blocks run along the last axis, so ``transpose`` is True
        return b.multiply(a)
    b = dense(b)
    right = mx.swapaxes(b, -1, -2) if transpose else b
    return _product(a, right, half=gpu and precision == "fast")


def _product(x: Array, right: Array, *, half: bool) -> Array:
    """``x @ right``. ``half``: compute in the type of ``right`` if it is F16 or BF16. A CPU is faster in F32."""
    if half and right.dtype in (mx.float16, mx.bfloat16):
        return (x.astype(right.dtype) @ right).astype(mx.float32)
    return mx.matmul(f32(x), f32(right))


def linear_experts(x: Array, weight: Any, experts: Array) -> Array:
    n, k = experts.shape
    rows = f32(x).reshape(-1, 1, x.shape[-1])  # (n or n * k, 1, in)
    chosen = experts.astype(mx.uint32).reshape(-1)
    left = mx.arange(n * k, dtype=mx.uint32) // (n * k // rows.shape[0])  # the row that each choice multiplies
    order = mx.argsort(chosen) if chosen.size >= _SORTED_FROM else None
    choice: dict[str, Any] = {"lhs_indices": left, "rhs_indices": chosen}
    if order is not None:  # a GPU then reads an expert once for all its rows; with lhs_indices MLX ignores the order
        rows, choice = rows[left[order]], {"rhs_indices": chosen[order], "sorted_indices": True}
    if isinstance(weight, Packed):
        y = weight.multiply_chosen(rows, **choice)
    else:
        y = mx.gather_mm(rows, mx.swapaxes(f32(weight), -1, -2), **choice)
    y = y if order is None else y[mx.argsort(order)]
    return y.reshape(n, k, -1)


def solve_lower(a: Array, b: Array) -> Array:
    """Solve row by row: MLX's function multiplies by the inverse, which loses digits, and runs on the CPU only."""
    solved: list[Array] = []
    for i in range(a.shape[-1]):
        rest = b[..., i : i + 1, :]
        if solved:
            rest = rest - a[..., i : i + 1, :i] @ mx.concatenate(solved, axis=-2)
        solved.append(rest / a[..., i : i + 1, i : i + 1])
    return mx.concatenate(solved, axis=-2)


# Reductions


def mean(x: Array, *, axis: tuple[int, ...], keepdims: bool) -> Array:
    """The mean in two passes: a CPU adds in F32 one by one, so numbers far from 0 lose digits in one pass."""
    first = mx.mean(x, axis, keepdims=True)
    y = mx.where(mx.isfinite(first), first + mx.mean(x - first, axis, keepdims=True), first)  # ∞ - ∞ is NaN
    return y if keepdims else mx.squeeze(y, axis)


def softmax(x: Array, mask: Array | None = None, *, scale: float) -> Array:
    y = x if scale == 1 else x * scale
    return mx.softmax(y if mask is None else y + mask, axis=-1, precise=True)


def argmax(x: Array) -> Array:
    return mx.argmax(x, axis=-1).astype(mx.int32)


def argsort(x: Array, *, descending: bool) -> Array:
    return mx.argsort(-x if descending else x, axis=-1).astype(mx.int32)


def top_k(x: Array, *, k: int, gpu: bool) -> Array:
    # A full sort of a vocabulary takes longer than the rest of sampling. On GPUs, argpartition is a full sort too.
    if not gpu and k < x.shape[-1] // 8:
        chosen = mx.argpartition(-x, k - 1, axis=-1)[..., :k]
        largest = mx.argsort(-mx.take_along_axis(x, chosen, axis=-1), axis=-1)
        return mx.take_along_axis(chosen, largest, axis=-1).astype(mx.int32)
    return mx.argsort(-x, axis=-1)[..., :k].astype(mx.int32)


# Rows and parts


def take(x: Any, indices: Array) -> Array:
    if isinstance(x, Packed):
        return x.rows(indices)
    rows = mx.take(x, indices, axis=0)
    return rows if x.dtype in _INTEGERS else rows.astype(mx.float32)


def take_along(x: Array, indices: Array) -> Array:
    return mx.take_along_axis(x, indices, axis=-1)


def set_rows(x: Array, indices: Array, rows: Array, *, dtype: DType, gpu: bool) -> Array:
    y = mx.array(x)  # the same value under another name: item assignment rebinds the name's value
    y[indices] = round_to(rows, dtype, gpu=gpu)
    return y


def set_slice(x: Array, values: Array, *, slices: Slices, dtype: DType, gpu: bool) -> Array:
    y = mx.array(x)
    y[_slices(slices)] = round_to(values, dtype, gpu=gpu)
    return y


def _slices(slices: Slices) -> tuple[slice, ...]:
    return tuple(slice(*s) for s in slices)


_SAME_IN_MLX = (
    *("abs", "floor", "round", "sqrt", "exp", "log", "sin", "cos", "tanh", "sigmoid"),
    *("sum", "max", "min", "maximum", "minimum"),
)


def functions(*, gpu: bool) -> Mapping[str, Callable[..., Array]]:
    """The functions for a device, by op name."""
    on_device: Mapping[str, Any] = {"gpu": gpu}
    return {
        **{name: arithmetic(getattr(mx, name)) for name in _SAME_IN_MLX},
        "add": arithmetic(mx.add),
        "sub": arithmetic(mx.subtract),
        "mul": arithmetic(mx.multiply),
        "div": arithmetic(mx.divide),
        "floor_divide": arithmetic(floor_divide),
        "mod": arithmetic(mod),
        "equal": _comparison(mx.equal),
        "less": _comparison(mx.less),
        "less_equal": _comparison(mx.less_equal),
        "where": arithmetic(where),
        "affine": arithmetic(lambda x, *, scale, bias: x * scale + bias if bias else x * scale),
        "neg": arithmetic(mx.negative),
        "sqr": arithmetic(mx.square),
        "softplus": arithmetic(lambda x: mx.logaddexp(x, mx.array(0.0))),
        "relu": arithmetic(lambda x: mx.maximum(x, mx.array(0.0))),
        "silu": arithmetic(lambda x: x * mx.sigmoid(x) if gpu else x / (1 + mx.exp(-x))),
        "gelu": arithmetic(gelu),
        "clamp": arithmetic(clamp),
        "cast": movement(lambda x, *, dtype: round_to(x, dtype, gpu=gpu)),
        "matmul": functools.partial(matmul, **on_device),
        "linear": functools.partial(linear, **on_device),
        "linear_experts": linear_experts,
        "solve_lower": arithmetic(solve_lower),
        "mean": arithmetic(mx.mean if gpu else mean),
        "cumsum": arithmetic(lambda x: mx.cumsum(x, axis=-1)),
        "softmax": arithmetic(softmax),
        "argmax": arithmetic(argmax),
        "argsort": arithmetic(argsort),
        "top_k": arithmetic(functools.partial(top_k, gpu=gpu)),
        "reshape": movement(lambda x, *, shape: mx.reshape(x, shape)),
        "permute": movement(lambda x, *, axes: mx.transpose(x, axes)),
        "expand": movement(lambda x, *, shape: mx.broadcast_to(x, shape)),
        "slice": movement(lambda x, *, slices: x[_slices(slices)]),
        "concat": movement(lambda *xs, axis: mx.concatenate(list(xs), axis=axis)),
        "pad": arithmetic(lambda x, *, widths: mx.pad(x, widths)),
        "take": take,
        "take_along": arithmetic(take_along),
        "set_rows": movement(functools.partial(set_rows, **on_device)),
        "set_slice": movement(functools.partial(set_slice, **on_device)),
        "argmin": arithmetic(lambda x: mx.argmin(x, axis=-1).astype(mx.int32)),
    }
