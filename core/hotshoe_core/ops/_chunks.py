"""Chunked forms of recurrences: matrix products over chunks of 64 steps, and one pass over the chunks.

They are the decompositions of prompts: a step at a time would be thousands of nodes. Decays are always sums of
logarithms over the steps between two others, never differences of running sums: no exponential overflows, and none
loses digits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hotshoe_core.ops.arrange import stack
from hotshoe_core.ops.movement import concat
from hotshoe_core.ops.rules import F32
from hotshoe_core.tensors.tensor import Tensor, constant

__all__ = ["chunked_attention", "chunked_scan", "chunked_wkv6", "chunked_wkv7"]

Array = np.ndarray[Any, np.dtype[np.float32]]

_CHUNK = 64
_SCAN = 32  # steps of a chunk of a scan, whose nodes grow with the steps and with the chunks
_LEAST = -1e4  # the logarithm of a decay that is 0 in F32. A product of -inf and 0 would be NaN


class _Chunks:
    """The chunks of a series of ``t`` steps: their size is 64, or less if there are fewer steps."""

    def __init__(self, v: Tensor, k_heads: int) -> None:
        self.n, self.t, self.heads, self.dv = v.shape
        self.k_heads = k_heads
        self.size = min(_CHUNK, 1 << (self.t - 1).bit_length())
        self.count = -(-self.t // self.size)

    def cut(self, x: Tensor) -> Tensor:
        """Return (n * count * k_heads, heads of each key, size, d). Steps of zeros at the end change nothing."""
        n = self.n * self.count
        x = x.cast(F32)
        if self.t % self.size:
            x = x.pad((0, 0), (0, self.count * self.size - self.t), (0, 0), (0, 0))
        x = x.reshape(n, self.size, *x.shape[2:]).permute(0, 2, 1, 3)
        return x.reshape(n * self.k_heads, -1, *x.shape[2:])

    def each(self, x: Tensor) -> Tensor:
        """Return (n * count, heads, a, b)."""
        return x.reshape(self.n * self.count, self.heads, *x.shape[2:])

    def through(
        self, state: Tensor, total: Tensor, new: Tensor, kept: Tensor, old: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Go through the chunks: ``values = new + old @ Sᵀ``, then ``S = S total + valuesᵀ @ kept``.

        Return the state before each chunk, the values of each, both (n * count, heads, a, b), and the last state.
        """
        states, written = [], []
        for i in range(self.count):
            states.append(state)
            values = new[i :: self.count]  # (n, heads, size, dv)
            if old is not None:
                values = values + _product(old[i :: self.count], state, transpose=True)
            written.append(values)
            state = state * total[i :: self.count] + _product(values.permute(0, 1, 3, 2), kept[i :: self.count])
        return self._joined(states), self._joined(written), state

    def _joined(self, parts: list[Tensor]) -> Tensor:
        rows = [x.reshape(self.n, 1, self.heads, -1) for x in parts]
        return concat(*rows, axis=1).reshape(self.n * self.count, *parts[0].shape[1:])

    def whole(self, y: Tensor) -> Tensor:
        """(n * count, heads, size, dv) to (n, t, heads, dv)."""
        return y.permute(0, 2, 1, 3).reshape(self.n, self.count * self.size, self.heads, self.dv)[:, : self.t]


def _ones(size: int, k: int = 0) -> Array:
    return np.tri(size, k=k, dtype=np.float32)


def chunked_attention(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, beta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Linear attention whose state S maps keys to values, ``S = S diag(exp(g)) + v kᵀ`` and ``y = S q``.

    With beta, the delta rule: v is replaced by ``beta (v - S diag(exp(g)) k)``, in the WY form of Yang et al. 2024
    (arXiv:2406.06484, arXiv:2412.06464). Shapes: q and k (n, t, k_heads, dk), where head ``h`` reads
    ``h // (heads / k_heads)``; v (n, t, heads, dv), g (n, t, heads, 1 or dk), beta (n, t, heads, 1), state (n, heads,
    dv, dk). Returns y and the new state.
    """
    chunks = _Chunks(v, k.shape[2])
    dv, size = chunks.dv, chunks.size
    q, k, v, g = map(chunks.cut, (q, k, v, g.clamp(min=_LEAST)))
    since = _product(constant(_ones(size), "since"), g).exp()  # the decay from the start of the chunk
    until = _product(constant(1 - _ones(size), "until"), g).exp()  # and to its end
    scores = chunks.each(_decayed_products(q, k, g))
    new, old = v, None
    if beta is not None:
        beta = chunks.cut(beta)
        inverse = _inverse_plus_one(_decayed_products(k, k, g) * beta)
        both = _product(inverse, concat(v, k * since, axis=-1) * beta)
        new, old = both[..., :dv], chunks.each(-both[..., dv:])
    kept, total = chunks.each(k * until), chunks.each(since[..., -1:, :])
    states, written, state = chunks.through(state.cast(F32), total, chunks.each(new), kept, old)
    y = _product(scores, written) + _product(chunks.each(q * since), states, transpose=True)
    return chunks.whole(y), state


def chunked_wkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """RWKV-6: linear attention whose result precedes the write, which has a weight of its own. As in ``rwkv_wkv6``."""
    chunks = _Chunks(v, v.shape[2])
    size = chunks.size
    r, k, v, g = map(chunks.cut, (r, k, v, w.cast(F32).log().clamp(min=_LEAST)))
    before = _product(constant(_ones(size, -1), "before"), g).exp()  # the decay up to the step before
    until = _product(constant(1 - _ones(size), "until"), g).exp()
    total = _product(constant(np.ones((1, size), np.float32), "all"), g).exp()
    present = (chunks.each(r) * chunks.each(k) * u.cast(F32)[:, None]).sum(keepdims=True)  # (n * count, heads, size, 1)
    scores = chunks.each(_decayed_products(r, k, g, inclusive=False))
    state = state.cast(F32).permute(0, 1, 3, 2)
    v = chunks.each(v)
    states, _, state = chunks.through(state, chunks.each(total), v, chunks.each(k * until))
    y = _product(scores, v) + present * v + _product(chunks.each(r * before), states, transpose=True)
    return chunks.whole(y), state.permute(0, 1, 3, 2)


def chunked_wkv7(
    r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """RWKV-7: ``S = S (diag(w) + a bᵀ) + v kᵀ`` and ``y = S r``. As in ``rwkv_wkv7``.

    It is linear attention with two writes for each step: v at k, and ``S a``, with the state before the step, at b.
    """
    chunks = _Chunks(v, v.shape[2])
    size = chunks.size
    r, k, v, a, b, g = map(chunks.cut, (r, k, v, a, b, w.cast(F32).log().clamp(min=_LEAST)))
    since = _product(constant(_ones(size), "since"), g).exp()
    before = _product(constant(_ones(size, -1), "before"), g).exp()
    until = _product(constant(1 - _ones(size), "until"), g).exp()
    inverse = _inverse_plus_one(-_decayed_products(a, b, g, inclusive=False))
    removed = _product(inverse, _product(_decayed_products(a, k, g, inclusive=False), v))
    new = concat(removed, v, axis=-2)  # (…, 2 * size, dv)
    old = _product(inverse, a * before).pad((0, 0), (0, 0), (0, size), (0, 0))
    kept, total = concat(b * until, k * until, axis=-2), since[..., -1:, :]
    states, written, state = chunks.through(state.cast(F32), *map(chunks.each, (total, new, kept, old)))
    scores = concat(_decayed_products(r, b, g), _decayed_products(r, k, g), axis=-1)
    y = _product(chunks.each(scores), written) + _product(chunks.each(r * since), states, transpose=True)
    return chunks.whole(y), state


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
    lower = constant(_ones(size), "since")
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


def _decayed_products(x: Tensor, k: Tensor, g: Tensor, *, inclusive: bool = True) -> Tensor:
    """Return ``x[i] · k[j]`` for j ≤ i, decayed by the steps after j up to i; zeros above the diagonal.

    inclusive: False is for ``j < i``, decayed by the steps between the two; g has a decay for each element then.

    Shapes: x and k (batch, 1, size, dk), g (batch, heads, size, 1 or dk) give (batch, heads, size, size).
    """
    size = k.shape[-2]
    lower = constant(_ones(size), "lower")
    if g.shape[-1] == 1:
        between = _product(lower, g * constant(1 - _ones(size).T, "after"))  # (batch, heads, size, size)
        return _product(x, k, transpose=True) * (between.exp() * lower)
    products = None
    if inclusive:
        products = _product(x, k, transpose=True) * constant(np.eye(size, dtype=np.float32), "diagonal")
    for half in _halves(size):  # a decay of each element: from j to the middle of a block, and from there to i
        steps = np.arange(size)
        middle = steps // (2 * half) * 2 * half + half
        first, last = np.minimum(middle, steps + 1), np.maximum(middle, steps + inclusive)
        inside = (steps >= first[:, None]) & (steps < last[:, None])
        decay = _product(constant(inside.astype(np.float32), "inside"), g).exp()
        part = _product(x * decay, k * decay, transpose=True) * constant(_below(size, half), "below")
        products = part if products is None else products + part
    assert products is not None  # a chunk has two steps or more
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


def _below(size: int, half: int) -> Array:
    """Return ones where the row is in the second and the column in the first half of a block of ``2 * half``."""
    at = np.arange(size)
    same = at[:, None] // (2 * half) == at // (2 * half)
    return (same & (at[:, None] // half % 2 == 1) & (at // half % 2 == 0)).astype(np.float32)
