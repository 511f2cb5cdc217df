"""The op table over JAX: one function for each primitive. Core decomposes the other ops, and XLA fuses the parts.

Floats arrive as F32, except in ops that only move elements; integers keep their type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hotshoe_core import DType

Slices = tuple[tuple[int, int, int], ...]

TYPES = {
    DType.F32: jnp.float32,
    DType.F16: jnp.float16,
    DType.BF16: jnp.bfloat16,
    DType.F64: jnp.float64,
    DType.I8: jnp.int8,
    DType.I16: jnp.int16,
    DType.I32: jnp.int32,
    DType.I64: jnp.int64,
}


def gelu(x: Array, *, approximate: str) -> Array:
    if approximate == "quick":
        return x * jax.nn.sigmoid(1.702 * x)
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def clamp(x: Array, *, min: float, max: float) -> Array:
    if jnp.issubdtype(x.dtype, jnp.integer):  # JAX would convert integers to floats and round them
        info = jnp.iinfo(x.dtype)
        min, max = (int(sorted((int(info.min), limit, int(info.max)))[1]) for limit in (min, max))
    return jnp.clip(x, min, max)


def comparison(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """``function`` with a result of ones and zeros instead of bools."""
    return lambda a, b: function(a, b).astype(jnp.float32)


def matmul(a: Array, b: Array, *, transpose: bool, precision: str) -> Array:
    return a @ (b.mT if transpose else b)  # in F32, which also satisfies precision="full"


def linear_experts(x: Array, weight: Array, experts: Array) -> Array:
    """Sort the rows by expert, and multiply each group by its matrix."""
    rows = jnp.broadcast_to(x, (*experts.shape, x.shape[-1])).reshape(-1, x.shape[-1])  # (n · k, in)
    order = jnp.argsort(experts.reshape(-1))
    sizes = jnp.bincount(experts.reshape(-1), length=weight.shape[0]).astype(jnp.int32)
    y = jax.lax.ragged_dot(rows[order], weight.mT, sizes)
    return jnp.zeros_like(y).at[order].set(y).reshape(*experts.shape, -1)


def softmax(x: Array, mask: Array | None, *, scale: float) -> Array:
    return jax.nn.softmax(x * scale if mask is None else x * scale + mask, -1)


def argsort(x: Array, *, descending: bool) -> Array:
    return jnp.argsort(-x if descending else x).astype(jnp.int32)  # JAX sorts NaN last, in both directions


def part(slices: Slices) -> tuple[slice, ...]:
    return tuple(slice(*s) for s in slices)


SAME = "abs add ceil cos exp floor floor_divide log maximum minimum round sin sqrt tanh"

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(jnp, name) for name in SAME.split()},
    "sub": jnp.subtract,
    "mul": jnp.multiply,
    "div": jnp.divide,
    "neg": jnp.negative,
    "mod": jnp.remainder,
    "equal": comparison(jnp.equal),
    "less": comparison(jnp.less),
    "less_equal": comparison(jnp.less_equal),
    "where": lambda condition, a, b: jnp.where(condition != 0, a, b),
    "affine": lambda x, *, scale, bias: x * scale + bias,
    "sqr": jnp.square,
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "gelu": gelu,
    "clamp": clamp,
    "cast": lambda x, *, dtype: x.astype(TYPES[dtype]),
    "matmul": matmul,
    "linear": lambda x, weight: x @ weight.mT,
    "linear_experts": linear_experts,
    "solve_lower": lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
    "sum": lambda x, *, axis, keepdims: jnp.sum(x, axis, x.dtype, keepdims=keepdims),
    "mean": lambda x, *, axis, keepdims: jnp.mean(x, axis, keepdims=keepdims),
    "max": lambda x, *, axis, keepdims: jnp.max(x, axis, keepdims=keepdims),
    "cumsum": lambda x: jnp.cumsum(x, -1, x.dtype),
    "softmax": softmax,
    "argmax": lambda x: jnp.argmax(x, -1).astype(jnp.int32),
    "argsort": argsort,
    "top_k": lambda x, *, k: argsort(x, descending=True)[..., :k],
    "reshape": lambda x, *, shape: x.reshape(shape),
    "permute": lambda x, *, axes: x.transpose(axes),
    "expand": lambda x, *, shape: jnp.broadcast_to(x, shape),
    "slice": lambda x, *, slices: x[part(slices)],
    "concat": lambda *xs, axis: jnp.concatenate(xs, axis),
    "pad": lambda x, *, widths: jnp.pad(x, widths),
    "take": lambda x, indices: x[indices],
    "take_along": lambda x, indices: jnp.take_along_axis(x, indices, -1),
    # JAX's arrays do not change: these return new ones. XLA writes into the old memory if the adapter donates it.
    "set_rows": lambda x, indices, rows, *, dtype: x.at[indices].set(rows.astype(x.dtype)),
    "set_slice": lambda x, values, *, slices, dtype: x.at[part(slices)].set(values.astype(x.dtype)),
}
