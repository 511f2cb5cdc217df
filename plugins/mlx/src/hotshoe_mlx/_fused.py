"""Composites for which MLX has a function in ``mx.fast``: norms, rope and attention. On a CPU these two are our own."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import mlx.core as mx
import numpy as np

from hotshoe_core.ops.attention import RoPE
from hotshoe_mlx._functions import arithmetic, dense, f32

__all__ = ["fused"]

Array: TypeAlias = mx.array


def rms_norm(x: Array, weight: Array | None = None, *, eps: float) -> Array:
    return mx.fast.rms_norm(x, weight, eps)


def layer_norm(x: Array, weight: Array | None = None, bias: Array | None = None, *, eps: float, gpu: bool) -> Array:
    """On a CPU, subtract the mean first: MLX's layer_norm loses digits if the mean is far from 0."""
    x = x if gpu else x - mx.mean(x, axis=-1, keepdims=True)
    return mx.fast.layer_norm(x, weight, bias, eps)


def rope(x: Array, positions: Array, factors: Array | None = None, *, config: RoPE) -> Array:
    """MLX rotates sequences, each with an offset. Here each token is a sequence of length 1."""
    heads, dim = x.shape[-2:]
    tokens = x.reshape(-1, heads, 1, dim)
    offsets = mx.broadcast_to(positions, x.shape[:-2]).reshape(-1)
    periods = mx.array(1 / config.frequencies())  # MLX divides by ``freqs``
    y = mx.fast.rope(
        tokens,
        config.dim,
        traditional=config.interleaved,
        base=None,
        scale=1.0,
        offset=offsets.astype(mx.int32),
        freqs=periods if factors is None else periods * factors,
    )
    magnitude = config.magnitude()
    if magnitude != 1:
        factor = np.ones(dim, np.float32)
        factor[: config.dim] = magnitude
        y = y * mx.array(factor)
    return y.reshape(x.shape)


class Turns:
    """Cosines and sines of a graph's angles. All layers use the same ones; ``mx.fast`` would compute them in each."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, RoPE], tuple[Array, Array | None, Array, Array]] = {}

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Around the functions of one graph."""
        try:
            yield
        finally:
            self._known.clear()

    def of(self, positions: Array, factors: Array | None, config: RoPE) -> tuple[Array, Array]:
        """Cosines and sines, (…, 1, dim / 2): positions has the shape (…)."""
        key = (id(positions), id(factors), config)
        if key not in self._known:  # with the arrays, so that their ids are not used again
            frequencies = mx.array(config.frequencies())
            frequencies = frequencies if factors is None else frequencies / factors
            angles = positions.astype(mx.float32)[..., None, None] * frequencies
            magnitude = config.magnitude()
            cos, sin = mx.cos(angles) * magnitude, mx.sin(angles) * magnitude
            self._known[key] = (positions, factors, cos, sin)
        return self._known[key][2:]


def rope_on_cpu(x: Array, positions: Array, factors: Array | None = None, *, config: RoPE, turns: Turns) -> Array:
    cos, sin = turns.of(positions, factors, config)
    n = config.dim
    if config.interleaved:
        a, b = x[..., 0:n:2], x[..., 1:n:2]
    else:
        a, b = x[..., : n // 2], x[..., n // 2 : n]
    parts = [a * cos - b * sin, a * sin + b * cos]
    if config.interleaved:
        parts = [mx.stack(parts, axis=-1).reshape(*x.shape[:-1], n)]
    if n < x.shape[-1]:
        parts.append(x[..., n:])
    return mx.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]


def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    sinks: Array | None = None,
    slopes: Array | None = None,
    *,
    scale: float,
    softcap: float,
) -> Array:
    """q, k, v: (n, heads, dim) or (batch, n, heads, dim). It is computed in the type of the cache."""
    q, k, v, mask, slopes = f32(q), dense(k), dense(v), f32(mask), f32(slopes)
    if mask is not None and slopes is not None:
        mask = mask * slopes.reshape(-1, 1, 1)
    dtype = k.dtype if k.dtype == v.dtype else mx.float32
    queries, keys, values = (_heads_first(t.astype(dtype)) for t in (q, k, v))
    y = mx.fast.scaled_dot_product_attention(
        queries,
        keys,
        values,
        scale=scale,
        mask=None if mask is None else mask.astype(dtype),
        sinks=None if sinks is None else dense(sinks).astype(dtype),
    )
    return mx.swapaxes(y, 1, 2).reshape(*q.shape[:-1], v.shape[-1]).astype(mx.float32)


def attention_on_cpu(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    sinks: Array | None = None,
    slopes: Array | None = None,
    *,
    scale: float,
    softcap: float,
) -> Array:
    """As ``attention``, in F32, by products of matrices: the heads that share keys are rows of one.

    ``mx.fast`` multiplies each head, and copies keys and values first: it took twice as long for one token.
    """
    *batch, n, heads, dim = q.shape
    m, kv_heads = k.shape[-3:-1]
    rows = heads // kv_heads * n
    if mask is not None and slopes is not None:
        mask = mask * slopes.reshape(-1, 1, 1)
    queries = mx.swapaxes(q * scale, -3, -2).reshape(*batch, kv_heads, rows, dim)
    keys = mx.swapaxes(mx.swapaxes(k, -3, -2), -2, -1)
    scores = (queries @ keys).reshape(*batch, heads, n, m)
    if mask is not None:
        scores = scores + mask
    if sinks is None:
        weights = mx.softmax(scores, axis=-1)
    else:
        column = mx.broadcast_to(sinks.reshape(-1, 1, 1), (*batch, heads, n, 1))
        weights = mx.softmax(mx.concatenate([scores, column], axis=-1), axis=-1)[..., :m]
    y = weights.reshape(*batch, kv_heads, rows, m) @ mx.swapaxes(v, -3, -2)
    return mx.swapaxes(y.reshape(*batch, heads, n, v.shape[-1]), -3, -2)


def _heads_first(x: Array) -> Array:
    """(n, heads, dim) or (batch, n, heads, dim) to (batch, heads, n, dim)."""
    return mx.swapaxes(x if x.ndim == 4 else x[None], 1, 2)


def fused(turns: Turns, *, gpu: bool) -> Mapping[str, Callable[..., Array]]:
    """The functions for a device, by op name. turns: its ``scope`` is entered around the functions of a graph."""
    return {
        "rms_norm": arithmetic(rms_norm),
        "layer_norm": arithmetic(functools.partial(layer_norm, gpu=gpu)),
        "rope": arithmetic(rope if gpu else functools.partial(rope_on_cpu, turns=turns)),
        "attention": attention if gpu else arithmetic(attention_on_cpu),
    }
