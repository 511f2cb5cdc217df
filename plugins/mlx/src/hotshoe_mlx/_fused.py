"""Composites for which MLX has a kernel in ``mx.fast``: norms, rope and attention."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
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
    gpu: bool,
) -> Array:
    """q, k, v: (n, heads, dim) or (batch, n, heads, dim). A GPU computes in the type of the cache, a CPU in F32."""
    q, k, v, mask, slopes = f32(q), dense(k), dense(v), f32(mask), f32(slopes)
    if mask is not None and slopes is not None:
        mask = mask * slopes.reshape(-1, 1, 1)
    dtype = k.dtype if gpu and k.dtype == v.dtype else mx.float32
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


def _heads_first(x: Array) -> Array:
    """(n, heads, dim) or (batch, n, heads, dim) to (batch, heads, n, dim)."""
    return mx.swapaxes(x if x.ndim == 4 else x[None], 1, 2)


def fused(*, gpu: bool) -> Mapping[str, Callable[..., Array]]:
    """The functions for a device, by op name."""
    return {
        "rms_norm": arithmetic(rms_norm),
        "layer_norm": arithmetic(functools.partial(layer_norm, gpu=gpu)),
        "rope": arithmetic(rope),
        "attention": lambda *arrays, **attrs: attention(*arrays, gpu=gpu, **attrs),
    }
