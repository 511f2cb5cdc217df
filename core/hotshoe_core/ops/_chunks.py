"""Chunked forms of recurrences: matrix products over chunks of 64 steps, and one pass over the chunks.

They are the decompositions of prompts: a step at a time would be thousands of nodes. Decays are always sums of
logarithms over the steps between two others, never differences of running sums: no exponential overflows, and none
loses digits.
"""

from __future__ import annotations

import math

import numpy as np

from hotshoe_core.ops.arrange import stack
from hotshoe_core.ops.movement import concat
from hotshoe_core.ops.rules import F32
from hotshoe_core.tensors.tensor import Tensor, constant

__all__ = ["chunked_attention", "chunked_scan"]

_CHUNK = 64
_SCAN = 32  # steps of a chunk of a scan, whose nodes grow with the steps and with the chunks
_LEAST = -1e4  # the logarithm of a decay that is 0 in F32. A product of -inf and 0 would be NaN


def chunked_attention(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, beta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Linear attention whose state S maps keys to values, ``S = S diag(exp(g)) + v kᵀ`` and ``y = S q``.

    With beta, the delta rule: v is replaced by ``beta (v - S diag(exp(g)) k)``, in the WY form of Yang et al. 2024
    (arXiv:2406.06484, arXiv:2412.06464). Shapes: q and k (n, t, k_heads, dk), where head ``h`` reads
    ``h // (heads / k_heads)``; v (n, t, heads, dv), g (n, t, heads, 1 or dk), beta (n, t, heads, 1), state (n, heads,
    dv, dk). Returns y and the new state.
    """
    (n, t, heads, dv), k_heads = v.shape, k.shape[2]
    size = min(_CHUNK, 1 << (t - 1).bit_length())
    chunks = -(-t // size)

    def cut(x: Tensor) -> Tensor:
        """Return (n * chunks * k_heads, heads of each key, size, d). Steps of zeros at the end change nothing."""
        if t % size:
            x = x.pad((0, 0), (0, chunks * size - t), (0, 0), (0, 0))
        x = x.reshape(n * chunks, size, *x.shape[2:]).permute(0, 2, 1, 3)
        return x.reshape(n * chunks * k_heads, -1, *x.shape[2:])

    def each(x: Tensor) -> Tensor:
        return x.reshape(n * chunks, heads, *x.shape[2:])

    def joined(parts: list[Tensor]) -> Tensor:
        """Join what each chunk has, (n, heads, a, b), to (n * chunks, heads, a, b)."""
        rows = [x.reshape(n, 1, heads, -1) for x in parts]
        return concat(*rows, axis=1).reshape(n * chunks, *parts[0].shape[1:])

    q, k, v, g = (cut(x.cast(F32)) for x in (q, k, v, g.clamp(min=_LEAST)))
    lower = np.tri(size, dtype=np.float32)
    since = _product(constant(lower, "since"), g).exp()  # the decay from the start of the chunk
    until = _product(constant(1 - lower, "until"), g).exp()  # and to its end
    scores = each(_decayed_products(q, k, g))
    new, old = v, None  # what each step writes: new - old @ Sᵀ, with the state S before the chunk
    if beta is not None:
        beta = cut(beta.cast(F32))
        inverse = _inverse_plus_one(_decayed_products(k, k, g) * beta)
        both = _product(inverse, concat(v, k * since, axis=-1) * beta)
        new, old = both[..., :dv], each(both[..., dv:])
    new, kept, total = each(new), each(k * until), each(since[..., -1:, :])
    state = state.cast(F32)
    states, written = [], []
    for i in range(chunks):
        states.append(state)
        values = new[i::chunks]  # (n, heads, size, dv)
        if old is not None:
            values = values - _product(old[i::chunks], state, transpose=True)
        written.append(values)
        state = state * total[i::chunks] + _product(values.permute(0, 1, 3, 2), kept[i::chunks])
    y = _product(scores, joined(written)) + _product(each(q * since), joined(states), transpose=True)
    return y.permute(0, 2, 1, 3).reshape(n, chunks * size, heads, dv)[:, :t], state


def chunked_scan(x: Tensor, dt: Tensor, rates: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Mamba's scan, with a decay for each element of the state: ``h = exp(dt rates) h + dt x Bᵀ`` and ``y = h C``.

    All chunks begin with a state of zeros and go through their steps together; then the states before them are added.
    Shapes as in ``ssm_scan``, with rates (heads, d_state). Returns y and the new state.
    """
    n, t, heads, head_dim = x.shape
    groups, d_state = b.shape[2:]
    size = min(_SCAN, t)
    chunks = -(-t // size)
    rates = rates.cast(F32).reshape(heads, 1, d_state)

    def cut(series: Tensor) -> Tensor:
        """Return (n * chunks, size, a, b). Steps of zeros at the end change nothing."""
        if t % size:
            series = series.pad((0, 0), (0, chunks * size - t), (0, 0), (0, 0))
        return series.cast(F32).reshape(n * chunks, size, *series.shape[2:])

    def decay(dt: Tensor) -> Tensor:
        rows = (dt.reshape(-1, heads, 1, 1) * rates).exp()
        return rows.expand(rows.shape[0], heads, head_dim, d_state).reshape(n * chunks, size, -1)

    dt = dt.reshape(n, t, heads, 1)
    x, dt, b, c = cut(x * dt), cut(dt), cut(b), cut(c)
    factors = decay(dt)
    added = (x.reshape(-1, groups, heads // groups * head_dim, 1) * b.reshape(-1, groups, 1, d_state)).reshape(
        *factors.shape
    )
    h = added[:, 0]
    local = [h]
    for i in range(1, size):
        h = h * factors[:, i] + added[:, i]
        local.append(h)
    h = stack(*local, axis=1)  # (n * chunks, size, heads * head_dim * d_state)
    lower = constant(np.tri(size, dtype=np.float32), "since")
    since = decay(_product(lower, dt.reshape(n * chunks, size, heads)))
    state = state.cast(F32).reshape(n, -1)
    states = []
    for i in range(chunks):
        states.append(state)
        state = state * since[i::chunks, -1] + h[i::chunks, -1]
    h = h + since * stack(*states, axis=1).reshape(n * chunks, 1, -1)
    y = (h.reshape(n * chunks * size, groups, -1, d_state) * c.reshape(-1, groups, 1, d_state)).sum(-1)
    return y.reshape(n, chunks * size, heads, head_dim)[:, :t], state.reshape(n, heads, head_dim, d_state)


def _product(a: Tensor, b: Tensor, *, transpose: bool = False) -> Tensor:
    return a.matmul(b, transpose=transpose, precision="full")


def _decayed_products(x: Tensor, k: Tensor, g: Tensor) -> Tensor:
    """Return ``x[i] · k[j]`` for j ≤ i, decayed by the steps after j up to i; zeros above the diagonal.

    Shapes: x and k (batch, 1, size, dk), g (batch, heads, size, 1 or dk) give (batch, heads, size, size).
    """
    size = k.shape[-2]
    lower = np.tri(size, dtype=np.float32)
    if g.shape[-1] == 1:
        between = _product(constant(lower, "lower"), g * constant(1 - lower.T, "after"))  # (batch, heads, size, size)
        return _product(x, k, transpose=True) * (between.exp() * constant(lower, "lower"))
    products = _product(x, k, transpose=True) * constant(np.eye(size, dtype=np.float32), "diagonal")
    for half in _halves(size):  # a decay of each element: from j to the middle of a block, and from there to i
        steps = np.arange(size)
        middle = steps // (2 * half) * 2 * half + half
        first, last = np.minimum(middle, steps + 1), np.maximum(middle, steps + 1)
        inside = (steps >= first[:, None]) & (steps < last[:, None])
        decay = _product(constant(inside.astype(np.float32), "inside"), g).exp()
        products = products + _product(x * decay, k * decay, transpose=True) * constant(_below(size, half), "below")
    return products


def _inverse_plus_one(a: Tensor) -> Tensor:
    """Return ``(I + a)⁻¹``, where only the elements below the diagonal of a are read: (…, size, size).

    Blocks are joined in pairs: the inverse of [[A, 0], [C, B]] has ``-B⁻¹ C A⁻¹`` below the diagonal.
    """
    size = a.shape[-1]
    inverse: Tensor = constant(np.eye(size, dtype=np.float32), "diagonal")
    for half in _halves(size):
        below = a * constant(_below(size, half), "below")
        inverse = inverse - (below if half == 1 else _product(_product(inverse, below), inverse))
    return inverse


def _halves(size: int) -> list[int]:
    """Return 1, 2, 4, … below ``size``, which is a power of two."""
    return [1 << i for i in range(int(math.log2(size)))]


def _below(size: int, half: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Return ones where the row is in the second and the column in the first half of a block of ``2 * half``."""
    at = np.arange(size)
    same = at[:, None] // (2 * half) == at // (2 * half)
    return (same & (at[:, None] // half % 2 == 1) & (at // half % 2 == 0)).astype(np.float32)
