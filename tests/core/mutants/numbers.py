"""Errors with some numbers: wide integers, overflow, rounding, small numbers, far positions, NaN. As in ops.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import round_to
from hotshoe_core.testing import OP_CASES
from tests.core.mutants.mutant import Mutant
from tests.core.mutants.ops import of_rows
from tests.core.mutants.patches import f4, fitted, i4, nothing_where, operand, rope, to, truncated

__all__ = ["mutants"]

Array = np.ndarray[Any, Any]


def _saturated(f: Callable[..., Array], a: Array, b: Array) -> Array:
    """I32 that stops at its limits."""
    if a.dtype != i4:
        return f(a, b)
    return np.clip(f(a.astype(np.int64), b.astype(np.int64)), -(2**31), 2**31 - 1).astype(i4)


def _in_32_bits(f: Callable[..., Array], *xs: Array, **attrs: Any) -> Array:
    """I64 computed in I32."""
    y = f(*(x.astype(i4) if x.dtype == np.int64 else x for x in xs), **attrs)
    return y.astype(np.int64) if y.dtype == i4 and xs[-1].dtype == np.int64 else y


def _reversed(name: str) -> Callable[..., Array]:
    """An attribute with a number for each axis, in the reverse order."""
    return lambda f, *xs, **attrs: fitted(f(*xs, **{**attrs, name: attrs[name][::-1]}), f(*xs, **attrs).shape)


def _exchanged(one: str, other: str) -> Callable[..., Array]:
    return lambda f, *xs, **attrs: fitted(
        f(*xs, **{**attrs, one: attrs[other], other: attrs[one]}), f(*xs, **attrs).shape
    )


def _rows_cut_off(f: Callable[..., Array], x: Array, *rest: Any, dtype: DType, **attrs: Any) -> Array:
    """What is written is cut off to the type, not rounded."""
    *at, rows = rest
    if dtype is DType.BF16:
        rows = truncated(rows.astype(f4))
    elif dtype is DType.F16:
        rows = (rows.astype(f4).view(np.uint32) & np.uint32(0xFFFFE000)).view(f4)
    return f(x, *at, rows, dtype=dtype, **attrs)


def _rows_limited(f: Callable[..., Array], x: Array, *rest: Any, dtype: DType, **attrs: Any) -> Array:
    *at, rows = rest
    return f(x, *at, np.clip(rows, -65504, 65504) if dtype is DType.F16 else rows, dtype=dtype, **attrs)


def _floor_of_the_quotient(f: Callable[..., Array], a: Array, b: Array) -> Array:
    return np.floor(a / b) if a.dtype.kind == "f" else f(a, b)


def _rest_of_the_quotient(f: Callable[..., Array], a: Array, b: Array) -> Array:
    return a - np.floor(a / b) * b if a.dtype.kind == "f" else f(a, b)


def _large_sinks(
    f: Callable[..., Array], q: Array, k: Array, v: Array, mask: Any = None, sinks: Any = None, *rest: Any, **attrs: Any
) -> Array:
    """The maximum is taken without the sink, whose exponential overflows."""
    y = f(q, k, v, mask, sinks, *rest, **attrs)
    return y if sinks is None else np.where(sinks[:, None] > 80, f4(np.nan), y).astype(f4)


def _without_nan(f: Callable[..., Array], *xs: Array, **attrs: Any) -> Array:
    """NaN counts as 0."""
    return f(
        *(np.where(np.isnan(x), x.dtype.type(0), x) if x is not None and x.dtype.kind == "f" else x for x in xs),
        **attrs,
    )


def _zeros_skipped(f: Callable[..., Array], x: Array, w: Array) -> Array:
    """0 times infinity is 0: a product that skips zeros."""
    return f(np.where(np.isinf(x), np.finfo(f4).max, x), w) if not np.all(w) else f(x, w)


SMALL = {
    "exp: 0 below -15": lambda x: x < -15,
    "sigmoid: 0 below -25": lambda x: x < -25,
    "silu: 0 below -10": lambda x: x < -10,
    "tanh: 0 near 0": lambda x: np.abs(x) < 1e-3,
    "sqr: 0 near 0": lambda x: np.abs(x) < 1e-4,
    "softplus: 0 below -10": lambda x: x < -10,
    "add: small sums are 0": lambda a, b: np.abs(a + b) < 1e-7,
}

ROWS: Mapping[str, Callable[..., Any]] = {
    # integers
    **{f"{op}: I32 stops at its limits": _saturated for op in ("add", "sub", "mul")},
    **{
        f"{op}: I64 in 32 bits": _in_32_bits
        for op in (
            "add", "sub", "mul", "minimum", "equal", "less", "less_equal", "where", "abs", "mod", "floor_divide",
            "take", "concat", "reshape", "permute", "expand", "slice", "tile", "flip",
        )
    },
    "clamp: I64 in 32 bits": lambda f, x, **limits: np.clip(f(x, **limits), -(2**31), 2**31 - 1),
    "cast: I32 to I64 through F32": to(DType.I64, lambda x: x.astype(f4)),
    "cast: I64 to F32 through I32": lambda f, x, *, dtype: f(x.astype(i4) if x.dtype == np.int64 else x, dtype=dtype),
    # windows
    **{f"conv3d: {name} in the reverse order": _reversed(name) for name in ("stride", "padding", "dilation")},
    **{
        f"conv_transpose2d: {name} in the reverse order": _reversed(name)
        for name in ("stride", "padding", "dilation", "output_padding")
    },
    "conv1d: stride and dilation exchanged": _exchanged("stride", "dilation"),
    "conv_transpose1d: stride and dilation exchanged": _exchanged("stride", "dilation"),
    "max_pool2d: dilation in the reverse order": _reversed("dilation"),
    # small numbers, far numbers
    **{name: nothing_where(which, 0) for name, which in SMALL.items()},
    "log: of 0.001 and more": lambda f, x: f(np.where(x > 0, np.maximum(x, f4(1e-3)), x)),
    **{f"{op}: of 8,192 and less": operand(0, lambda x: np.clip(x, -8192, 8192)) for op in ("sin", "cos")},
    "rope: no position beyond 4,095": operand(1, lambda at: np.minimum(at, 4095)),
    "rope: a position below 0 is 0": operand(1, lambda at: np.maximum(at, 0)),
    "rope: no attention factor with sections": rope(attn_factor=lambda c: 1.0 if c.sections else c.attn_factor),
    "attention: a large sink overflows": _large_sinks,
    # rounding
    "set_rows: cut off": _rows_cut_off,
    "set_slice: cut off": _rows_cut_off,
    "set_rows: F16 ends at 65504": _rows_limited,
    "set_slice: F16 ends at 65504": _rows_limited,
    "set_rows: F16 by way of BF16": lambda f, x, at, rows, *, dtype: f(
        x, at, round_to(rows.astype(f4), DType.BF16) if dtype is DType.F16 else rows, dtype=dtype
    ),
    "floor_divide: the floor of the quotient": _floor_of_the_quotient,
    "mod: of the quotient's floor": _rest_of_the_quotient,
    # NaN
    **{
        f"{op}: NaN is 0": _without_nan
        for op in (
            "tanh", "exp", "silu", "softmax", "sum", "mean", "cumsum", "rms_norm", "cast", "add", "linear", "set_rows",
        )
    },
    "linear: 0 times infinity is 0": _zeros_skipped,
}  # fmt: skip


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    return of_rows(ROWS, OP_CASES[::-1])
