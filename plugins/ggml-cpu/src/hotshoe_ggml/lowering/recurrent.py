"""Lowerings of recurrences. ggml's ops return the outputs followed by the state, as core's do.

All except the delta rule take the steps of all sequences in one axis, sequence by sequence, and the states as rows of a
matrix.
"""

from __future__ import annotations

from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.lowering.builder import Builder, Ptr
from hotshoe_ggml.lowering.table import lowers

__all__: list[str] = []


def _nodes(node: Tensor) -> int:
    """A number of ggml nodes that is sufficient: each operand may need a cast, a copy and a few reshapes."""
    return 6 * len(node.sources)


def _shape(node: Tensor, operand: int) -> tuple[int, ...]:
    return node.source(operand).shape


def _plain(b: Builder, x: Ptr) -> Ptr:
    """``x`` as F32 in contiguous memory, which ggml's recurrences require."""
    return b.cont(b.f32(x))


# State space models


@lowers("ssm_conv")
def _ssm_conv(b: Builder, node: Tensor, x: Ptr, state: Ptr, weight: Ptr, bias: Ptr | None) -> Ptr:
    bias = bias if bias is None else _plain(b, bias)
    return b.ssm_conv(b.rows(b.f32(x)), b.rows(b.f32(state)), _plain(b, weight), bias)


def _scans(node: Tensor) -> bool:
    """Whether ggml's scan computes the node: it always applies a softplus to dt.

    With one decay for each element of the state, its SVE code needs a multiple of 16 elements.
    """
    a, d_state = _shape(node, 2), _shape(node, 5)[-1]
    per_head = len(a) == 1 or a[1] == 1
    return bool(node.attrs["dt_softplus"]) and (per_head or d_state % 16 == 0)


@lowers("ssm_scan", when=_scans, nodes=_nodes)
def _ssm_scan(b: Builder, node: Tensor, x: Ptr, dt: Ptr, a: Ptr, bb: Ptr, c: Ptr, state: Ptr) -> Ptr:
    n, t, heads, _ = _shape(node, 0)
    # ggml's scan has a softplus, log(1 + exp(dt)), which is inexact for the small dt of Mamba
    dt = b.reshape(b.softplus(_plain(b, dt)), (n, t, heads, 1))
    a = b.reshape(_plain(b, a), (heads, -(-a.ne[0] * a.ne[1] // heads)))
    x, bb, c = (b.rows(b.f32(operand)) for operand in (x, bb, c))
    return b.ssm_scan(x, dt, a, bb, c, state)


# Linear attention


def _is_square(node: Tensor) -> bool:
    """Whether keys and values have the same size, as ggml requires."""
    *_, a, b = _shape(node, len(node.sources) - 1)
    return a == b


@lowers("gated_delta_rule", nodes=_nodes)
def _gated_delta_rule(b: Builder, node: Tensor, q: Ptr, k: Ptr, v: Ptr, g: Ptr, beta: Ptr, state: Ptr) -> Ptr:
    n, t, heads, _ = _shape(node, 2)
    g_size = _shape(node, 3)[3] if len(_shape(node, 3)) == 4 else 1
    q, k, v = (b.rows(b.f32(x)) for x in (q, k, v))
    g = b.reshape(_plain(b, g), (n, t, heads, g_size))
    beta = b.reshape(_plain(b, beta), (n, t, heads, 1))
    return b.gated_delta(q, k, v, g, beta, state, scale=node.attrs["scale"], tiled=node.attrs["tiled"])


def _steps(b: Builder, node: Tensor, *series: Ptr) -> list[Ptr]:
    """(n_seqs, t, heads, dim) as (n_seqs * t, heads, dim)."""
    n, t, heads, dim = _shape(node, 0)
    return [b.cont(b.reshape(b.f32(x), (n * t, heads, dim))) for x in series]


def _states(b: Builder, node: Tensor, state: Ptr) -> Ptr:
    n, heads, *square = _shape(node, len(node.sources) - 1)
    return b.cont(b.reshape(b.f32(state), (n, heads * square[0] * square[1])))


@lowers("gated_linear_attention", when=_is_square, nodes=_nodes)
def _gated_linear_attention(b: Builder, node: Tensor, q: Ptr, k: Ptr, v: Ptr, g: Ptr, state: Ptr) -> Ptr:
    decay = b.call("exp", _plain(b, g))
    series = _steps(b, node, k, v, q, decay)
    y = b.call("gated_linear_attn", *series, _states(b, node, state), node.attrs["scale"])
    return b.reshape(y, node.shape)


@lowers("rwkv_wkv6", when=_is_square, nodes=_nodes)
def _rwkv_wkv6(b: Builder, node: Tensor, r: Ptr, k: Ptr, v: Ptr, w: Ptr, u: Ptr, state: Ptr) -> Ptr:
    k, v, r, w = _steps(b, node, k, v, r, w)
    return b.reshape(b.call("rwkv_wkv6", k, v, r, _plain(b, u), w, _states(b, node, state)), node.shape)


@lowers("rwkv_wkv7", when=lambda node: _is_square(node) and _shape(node, 6)[-1] % 64 == 0, nodes=_nodes)
def _rwkv_wkv7(b: Builder, node: Tensor, *operands: Ptr) -> Ptr:
    """Only for head sizes that are multiples of 64: ggml reads and writes past the end of others on some CPUs."""
    *series, state = operands
    return b.reshape(b.call("rwkv_wkv7", *_steps(b, node, *series), _states(b, node, state)), node.shape)
