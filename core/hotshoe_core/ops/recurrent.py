"""Recurrences: layers whose memory is a state of fixed size instead of a cache of keys and values.

The first axis is the sequence, the second is time: x (n_seqs, t, …), state (n_seqs, …). Each op takes the state before
the first step and returns the state after the last step, so a prompt may be computed in chunks. A node has one value:
for these ops it is a vector of the outputs followed by the state, and the functions here split it.

The reference is the recurrence written out over NumPy arrays. The same code over Tensors is the decomposition of a
single step, about twenty nodes; several steps are decomposed into chunks (ops/_chunks.py).
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hotshoe_core.errors import ShapeError
from hotshoe_core.ops._chunks import chunked_attention, chunked_scan, chunked_wkv6, chunked_wkv7
from hotshoe_core.ops.movement import concat
from hotshoe_core.ops.rules import F32, composite, require_finite, require_float
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Rule, Shape, Tensor

_Value = Any  # a Tensor, or a NumPy array in the reference backend


class Recurrence(NamedTuple):
    """The result of a recurrent op. Both tensors are F32."""

    y: Tensor
    """The outputs of all steps."""

    state: Tensor
    """The state after the last step."""


def _recurrence(
    rule: Rule, *, like: str, chunked: Callable[..., tuple[Tensor, Tensor]]
) -> Callable[[Callable[..., Any]], Callable[..., Recurrence]]:
    """Add an op whose body returns (y, state), and make the function that records it.

    rule: gives y's shape, which is the shape of the operand named ``like``. The last operand must be ``state``.
    chunked: another body for several steps, over Tensors only.
    """

    def packed_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
        shape, dtype = rule(args, attrs)
        return (math.prod(shape) + args[-1].size,), dtype

    def add(body: Callable[..., Any]) -> Callable[..., Recurrence]:
        @functools.wraps(body)
        def packed(*operands: _Value, **attrs: Any) -> _Value:
            several = operands[position].shape[1] > 1 and isinstance(operands[0], Tensor)
            y, state = (chunked if several else body)(*operands, **attrs)
            return _join([y.reshape(-1), state.reshape(-1)], 0)

        position = list(inspect.signature(body).parameters).index(like)
        op = composite(packed_rule, reference=packed)(packed)

        @functools.wraps(body)
        def record(*operands: Tensor, **attrs: Any) -> Recurrence:
            node = op(*operands, **attrs)
            y, state = node.source(position), node.source(-1)
            return Recurrence(node[: y.size].reshape(*y.shape), node[y.size :].reshape(*state.shape))

        return record

    return add


# Functions for the bodies, over Tensors and over arrays


def _exp(x: _Value) -> _Value:
    return x.exp() if isinstance(x, Tensor) else np.exp(x)


def _softplus(x: _Value) -> _Value:
    return x.softplus() if isinstance(x, Tensor) else np.logaddexp(x, np.float32(0))


def _join(parts: list[_Value], axis: int) -> _Value:
    return concat(*parts, axis=axis) if isinstance(parts[0], Tensor) else np.concatenate(parts, axis)


def _steps(step: Callable[..., tuple[_Value, _Value]], state: _Value, *series: _Value) -> Recurrence:
    """Run ``step(state, *values)``, which returns (y, state), for each time. Series: (n_seqs, t, …)."""
    ys = []
    for t in range(series[0].shape[1]):
        y, state = step(state, *(s[:, t] for s in series))
        ys.append(y[:, None])
    return Recurrence(_join(ys, 1), state)


def _require(name: str, tensor: Tensor, *expected: Shape) -> None:
    if tensor.shape not in expected:
        raise ShapeError(f"{name} must be {' or '.join(map(str, expected))}; got {tensor.shape}")


# State space models


def _ssm_conv_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, state, weight, bias = args
    require_float(x, state, weight, bias)
    if x.ndim != 3 or weight.ndim != 2:
        raise ShapeError("expected x (n_seqs, t, channels) and weight (channels, kernel)")
    n, _, channels = x.shape
    _require("weight", weight, (channels, weight.shape[1]))
    if weight.shape[1] < 2:
        raise ShapeError("the kernel size is 1; expected 2 or more", hint="multiply by the weight instead")
    _require("state", state, (n, weight.shape[1] - 1, channels))
    if bias is not None:
        _require("bias", bias, (channels,))
    return x.shape, F32


@composite(_ssm_conv_rule)
def ssm_conv(x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Causal depthwise convolution over time, in Mamba (Gu & Dao 2023, arXiv:2312.00752) and other models.

    Shapes: x (n_seqs, t, channels), state (n_seqs, kernel - 1, channels), weight (channels, kernel), bias (channels,)
    give (n_seqs, t, channels). The state holds the steps before x. The next state is
    ``concat(state, x, axis=1)[:, -(kernel - 1):]``.
    """
    t, kernel = x.shape[1], weight.shape[1]
    seen = concat(state.cast(F32), x.cast(F32), axis=1)
    y = seen[:, :t] * weight[:, 0]
    for i in range(1, kernel):
        y = y + seen[:, i : i + t] * weight[:, i]
    return y if bias is None else y + bias


def _ssm_scan_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    x, dt, a, b, c, state = args
    require_float(*args)
    if x.ndim != 4 or b.ndim != 4:
        raise ShapeError("expected x (n_seqs, t, heads, head_dim), B and C (n_seqs, t, groups, d_state)")
    (n, t, heads, head_dim), (groups, d_state) = x.shape, b.shape[2:]
    _require("dt", dt, (n, t, heads))
    _require("A", a, (heads,), (heads, 1), (heads, d_state))
    _require("B", b, (n, t, groups, d_state))
    _require("C", c, b.shape)
    _require("state", state, (n, heads, head_dim, d_state))
    if heads % groups:
        raise ShapeError(f"{heads} heads cannot share {groups} groups of B and C: not a multiple")
    return x.shape, F32


def _chunked_ssm_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, *, dt_softplus: bool
) -> tuple[Tensor, Tensor]:
    heads = x.shape[2]
    dt = _softplus(dt) if dt_softplus else dt
    if A.size > heads:
        return chunked_scan(x, dt, A, B, C, state)
    dt = dt.reshape(*dt.shape, 1)
    return chunked_attention(C, B, x * dt, dt * A.reshape(heads, 1), state)


@_recurrence(_ssm_scan_rule, like="x", chunked=_chunked_ssm_scan)
def ssm_scan(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, state: Tensor, *, dt_softplus: bool = False
) -> Recurrence:
    """Selective scan of Mamba (Gu & Dao 2023, arXiv:2312.00752) and Mamba-2 (Dao & Gu 2024, arXiv:2405.21060).

    For each head, ``h = exp(dt A) h + dt x Bᵀ`` and ``y = h C``. Shapes: x (n_seqs, t, heads, head_dim), dt
    (n_seqs, t, heads), A (heads,) or (heads, 1) for Mamba-2, (heads, d_state) for Mamba, whose heads are single
    channels; B and C (n_seqs, t, groups, d_state), where head ``h`` reads group ``h // (heads / groups)``; state h
    (n_seqs, heads, head_dim, d_state). Returns y (n_seqs, t, heads, head_dim) and the new state. dt_softplus: use
    ``softplus(dt)`` instead of dt.
    """
    n, _, heads, head_dim = x.shape
    groups, d_state = B.shape[2:]
    dt = _softplus(dt) if dt_softplus else dt
    rates = A.reshape(heads, -1)

    def step(h: _Value, x: _Value, dt: _Value, b: _Value, c: _Value) -> tuple[_Value, _Value]:
        decay = _exp(dt[..., None] * rates)  # (n, heads, 1 or d_state)
        scaled = (x * dt[..., None]).reshape(n, groups, -1, 1)
        h = (h * decay[:, :, None]).reshape(n, groups, -1, d_state)  # the heads of a group in one axis
        h = h + scaled * b[:, :, None]
        y = (h * c[:, :, None]).sum(-1)
        return y.reshape(n, heads, head_dim), h.reshape(n, heads, head_dim, d_state)

    return _steps(step, state, x, dt, B, C)


# Linear attention


def _linear_attention_rule(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, *, values_first: bool = False, grouped: bool = False
) -> tuple[int, int, int, int, int]:
    """Check the shapes that all linear attentions share; returns n_seqs, t, heads, dk, dv."""
    if k.ndim != 4 or v.ndim != 4:
        raise ShapeError("expected keys (n_seqs, t, heads, dk) and values (n_seqs, t, heads, dv)")
    (n, t, heads, dv), (k_heads, dk) = v.shape, k.shape[2:]
    if not grouped or heads % k_heads:
        k_heads = heads
    _require("the keys", k, (n, t, k_heads, dk))
    _require("the queries", q, k.shape)
    _require("state", state, (n, heads, dv, dk) if values_first else (n, heads, dk, dv))
    return n, t, heads, dk, dv


def _scale(attrs: dict[str, Any], dk: int) -> None:
    if attrs["scale"] is None:
        attrs["scale"] = dk**-0.5
    require_finite(attrs, "scale")


def _gated_delta_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    q, k, v, g, beta, state = args
    require_float(*args)
    n, t, heads, dk, _ = _linear_attention_rule(q, k, v, state, values_first=True, grouped=True)
    _require("g", g, (n, t, heads), (n, t, heads, dk))
    _require("beta", beta, (n, t, heads))
    _scale(attrs, dk)
    return v.shape, F32


def _tiled(x: _Value, times: int) -> _Value:
    """Repeat the keys of (n_seqs, t, k_heads, dk): k_heads of them, then the same again."""
    return _join([x] * times, 2)


def _chunked_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, *, scale: float, tiled: bool
) -> tuple[Tensor, Tensor]:
    if tiled:
        q, k = (_tiled(x, v.shape[2] // k.shape[2]) for x in (q, k))
    g, beta = (x.reshape(*v.shape[:3], -1) for x in (g, beta))
    return chunked_attention(q * scale, k, v, g, state, beta)


@_recurrence(_gated_delta_rule, like="v", chunked=_chunked_delta_rule)
def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    scale: float | None = None,
    tiled: bool = False,
) -> Recurrence:
    """Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464), and Kimi Delta Attention (2025, arXiv:2510.26692).

    For each head, ``S = S diag(exp(g))``, then ``S = S + beta (v - S k) kᵀ`` and ``y = scale S q``. Shapes: q and k
    (n_seqs, t, k_heads, dk), where head ``h`` reads ``h // (heads / k_heads)``, or ``h % k_heads`` if ``tiled``; v
    (n_seqs, t, heads, dv); g, the logarithm of the decay, (n_seqs, t, heads), or (n_seqs, t, heads, dk) with one decay
    for each element of a key; beta (n_seqs, t, heads); state S (n_seqs, heads, dv, dk), which maps a key to a value, as
    in the paper. Returns y (n_seqs, t, heads, dv) and the new state. scale: None is ``1 / √dk``.
    """
    n, _, heads, dv = v.shape
    if tiled:
        q, k = (_tiled(x, heads // k.shape[2]) for x in (q, k))
    k_heads, dk = k.shape[2:]
    decay = _exp(g).reshape(n, -1, heads, g.shape[-1] if g.ndim == 4 else 1)

    def step(s: _Value, q: _Value, k: _Value, v: _Value, decay: _Value, beta: _Value) -> tuple[_Value, _Value]:
        s = (s * decay[:, :, None]).reshape(n, k_heads, -1, dk)  # the heads that share a key in one axis
        k = k[:, :, None]
        error = v - (s * k).sum(-1).reshape(n, heads, dv)
        s = s + (error * beta[..., None]).reshape(n, k_heads, -1, 1) * k
        y = (s * q[:, :, None]).sum(-1) * scale
        return y.reshape(n, heads, dv), s.reshape(n, heads, dv, dk)

    return _steps(step, state, q, k, v, decay, beta)


def _gated_linear_attention_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    q, k, v, g, state = args
    require_float(*args)
    *_, dk, _ = _linear_attention_rule(q, k, v, state)
    _require("g", g, k.shape)
    _scale(attrs, dk)
    return v.shape, F32


def _chunked_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, *, scale: float
) -> tuple[Tensor, Tensor]:
    y, state = chunked_attention(q * scale, k, v, g, state.permute(0, 1, 3, 2))
    return y, state.permute(0, 1, 3, 2)


@_recurrence(_gated_linear_attention_rule, like="v", chunked=_chunked_linear_attention)
def gated_linear_attention(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, *, scale: float | None = None
) -> Recurrence:
    """Gated linear attention (Yang et al. 2023, arXiv:2312.06635).

    For each head, ``S = diag(exp(g)) S + k vᵀ`` and ``y = scale Sᵀ q``. Shapes: q, k and g, the logarithm of the decay,
    (n_seqs, t, heads, dk), v (n_seqs, t, heads, dv), state S (n_seqs, heads, dk, dv). Returns y (n_seqs, t, heads, dv)
    and the new state. scale: None is ``1 / √dk``.
    """

    def step(s: _Value, q: _Value, k: _Value, v: _Value, decay: _Value) -> tuple[_Value, _Value]:
        s = s * decay[..., None] + k[..., None] * v[:, :, None]
        return (s * q[..., None]).sum(-2) * scale, s

    return _steps(step, state, q, k, v, _exp(g))


# RWKV


def _rwkv_wkv6_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    r, k, v, w, u, state = args
    require_float(*args)
    _, _, heads, dk, _ = _linear_attention_rule(r, k, v, state)
    _require("w", w, k.shape)
    _require("u", u, (heads, dk))
    return v.shape, F32


@_recurrence(_rwkv_wkv6_rule, like="v", chunked=chunked_wkv6)
def rwkv_wkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, state: Tensor) -> Recurrence:
    """The WKV operator of RWKV-6 "Finch" (Peng et al. 2024, arXiv:2404.05892).

    For each head, ``y = (S + diag(u) k vᵀ)ᵀ r``, then ``S = diag(w) S + k vᵀ``. Shapes: r, k and w, the decay itself
    (0 … 1), (n_seqs, t, heads, dk), v (n_seqs, t, heads, dv), u, the weight of the current step, (heads, dk), state S
    (n_seqs, heads, dk, dv). Returns y (n_seqs, t, heads, dv) and the new state.
    """

    def step(s: _Value, r: _Value, k: _Value, v: _Value, w: _Value) -> tuple[_Value, _Value]:
        new = k[..., None] * v[:, :, None]  # (n, heads, dk, dv)
        y = ((s + new * u[..., None]) * r[..., None]).sum(-2)
        return y, s * w[..., None] + new

    return _steps(step, state, r, k, v, w)


def _rwkv_wkv7_rule(args: tuple[Any, ...], attrs: dict[str, Any]) -> tuple[Shape, DType]:
    r, w, k, v, a, b, state = args
    require_float(*args)
    _linear_attention_rule(r, k, v, state, values_first=True)
    for name, t in (("w", w), ("a", a), ("b", b)):
        _require(name, t, k.shape)
    return v.shape, F32


@_recurrence(_rwkv_wkv7_rule, like="v", chunked=chunked_wkv7)
def rwkv_wkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor) -> Recurrence:
    """The WKV operator of RWKV-7 "Goose" (Peng et al. 2025, arXiv:2503.14456).

    For each head, ``S = S (diag(w) + a bᵀ) + v kᵀ``, then ``y = S r``. Shapes: r, w (the decay itself, 0 … 1), k, a and
    b (n_seqs, t, heads, dk), v (n_seqs, t, heads, dv), state S (n_seqs, heads, dv, dk). Returns y (n_seqs, t, heads,
    dv) and the new state.
    """

    def step(s: _Value, r: _Value, w: _Value, k: _Value, v: _Value, a: _Value, b: _Value) -> tuple[_Value, _Value]:
        removed = (s * a[:, :, None]).sum(-1)  # (n, heads, dv)
        s = s * w[:, :, None] + removed[..., None] * b[:, :, None] + v[..., None] * k[:, :, None]
        return (s * r[:, :, None]).sum(-1), s

    return _steps(step, state, r, w, k, v, a, b)
