"""Steps of a random graph: products, convolutions, attention, recurrences, and states that are kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hotshoe_core.ops import (
    RoPE,
    add_experts,
    attention,
    avg_pool1d,
    avg_pool2d,
    concat,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    gated_delta_rule,
    gated_linear_attention,
    im2col,
    interpolate,
    linear,
    linear_experts,
    max_pool1d,
    max_pool2d,
    rope,
    rwkv_wkv6,
    rwkv_wkv7,
    solve_lower,
    solve_triangular,
    ssm_conv,
    ssm_scan,
)
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor, constant
from tests.fuzz.grower import F16, F32, Grower, step

# Products


@step
def product(g: Grower) -> Tensor:
    x = g.any(axes=1)
    k, n = x.shape[-1], g.rng.choice((1, 3, 6, 32))
    dtype = g.dtype(F16, DType.BF16)
    return linear(x, g.make.weight((n, k), dtype, uses=("linear",))) * (1 / math.sqrt(k))


BLOCKS = (
    DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1, DType.Q8_0, DType.IQ4_NL, DType.Q2_K, DType.Q3_K, DType.Q4_K,
    DType.Q5_K, DType.Q6_K, DType.IQ4_XS,
)  # fmt: skip


@step
def product_of_blocks(g: Grower) -> Tensor | None:
    """Quantized weights: in products, by experts, and read by rows; said to be for one use or for several."""
    if g.precise:
        return None
    dtype = g.rng.choice(BLOCKS)
    k = max(64, dtype.block_size)
    rows, n = g.rng.randint(1, 5), g.rng.choice((1, 3, 8, 16))
    kind = g.rng.randrange(4)
    uses = g.rng.choice(((), ("linear",), ("linear", "take"))) if kind < 2 else ()
    w = g.make.weight((n, k), dtype, uses=uses)
    if kind == 0 or uses == ("linear",):
        return linear(g.make.input((rows, k)), w) * (1 / math.sqrt(k))
    if kind == 1:
        return linear(w.take(g.indices((rows,), n)), w) * (1 / k)
    if kind == 2:
        return w.cast(F32)[:, 3:9]
    many = g.make.weight((3, n, k), dtype, uses=g.rng.choice(((), ("linear_experts",))))
    chosen = g.indices((rows, 2), 3)
    bias = g.make.weight((3, n))
    return add_experts(linear_experts(g.make.input((rows, 1, k)), many, chosen), bias, chosen) * (1 / math.sqrt(k))


@step
def solved(g: Grower) -> Tensor:
    n, k = g.rng.randint(1, 5), g.rng.randint(1, 4)
    a = g.alike((2, n, n)).tanh() * 0.3 + constant(2 * np.eye(n, dtype=np.float32))
    if g.rng.random() < 0.4:
        return solve_lower(a, g.alike((2, n, k)).tanh())
    left, flags = g.rng.random() < 0.5, {f: g.rng.random() < 0.5 for f in ("upper", "unitriangular")}
    return solve_triangular(a, g.alike((2, n, k) if left else (2, k, n)).tanh(), left=left, **flags)


@step
def product_of_two(g: Grower) -> Tensor:
    x = g.any(axes=2)
    k = x.shape[-1]
    if g.rng.random() < 0.5:
        return (x @ g.alike((*x.shape[:-2], k, 3))) * (1 / math.sqrt(k))
    return x.matmul(g.alike((4, k)), transpose=True, precision=g.rng.choice(("fast", "full"))) * (1 / math.sqrt(k))


@step
def experts(g: Grower) -> Tensor:
    n, k, d = g.rng.randint(1, 4), g.rng.randint(1, 3), 32
    x = g.make.input((n, g.rng.choice((1, k)), d))
    return linear_experts(x, g.make.weight((4, 8, d), g.dtype(F16, DType.Q8_0)), g.indices((n, k), 4)) * 0.2


@step
def convolved(g: Grower) -> Tensor:
    n, c = g.rng.randint(1, 2), g.rng.randint(1, 4)
    groups = g.rng.choice((1, c))
    stride, padding, dilation = g.rng.randint(1, 2), g.rng.randint(0, 2), g.rng.randint(1, 2)
    out = groups * g.rng.randint(1, 2)
    if g.rng.random() < 0.5:
        w = g.make.weight((out, c // groups, 3), g.dtype(F16))
        y = conv1d(g.alike((n, c, 8)), w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    else:
        w = g.make.weight((out, c // groups, 2, 3))
        y = conv2d(g.alike((n, c, 5, 6)), w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return y * (1 / math.sqrt(6 * c))


@step
def convolved_otherwise(g: Grower) -> Tensor:
    """Transposed, over three axes, or only the columns."""
    c, out = g.rng.randint(1, 3), g.rng.randint(1, 3)
    stride, padding, dilation = g.rng.randint(1, 3), g.rng.randint(0, 1), g.rng.randint(1, 2)
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    kind = g.rng.randrange(5)
    if kind == 0:
        y = conv_transpose1d(g.alike((2, c, 6)), g.make.weight((c, out, 3)), **geometry)
    elif kind == 1:
        bias = g.make.weight((out,)) if g.rng.random() < 0.5 else None
        y = conv_transpose2d(g.alike((c, 4, 3)), g.make.weight((c, out, 3, 2)), bias, **geometry)
    elif kind == 2:
        y = conv3d(g.alike((c, 4, 5, 4)), g.make.weight((out * c, 2, 3, 2)), **geometry)
    elif kind == 3:
        return im2col(g.alike((c, 5, 6)), kernel_size=(2, 3), **geometry)
    else:
        return im2col(g.alike((2, c, 7)), kernel_size=(3,), **geometry)
    return y * (1 / math.sqrt(9 * c))


@step
def pooled(g: Grower) -> Tensor:
    kernel, stride, ceil = g.rng.randint(1, 3), g.rng.randint(1, 3), g.rng.random() < 0.3
    padding = g.rng.randint(0, kernel // 2)
    count = {"count_include_pad": g.rng.random() < 0.5}
    shape = (2, 3, 7) if g.rng.random() < 0.5 else (3, 6, 7)
    options = {"kernel_size": kernel, "stride": g.rng.choice((None, stride)), "padding": padding, "ceil_mode": ceil}
    return g.rng.choice(
        (
            lambda: max_pool1d(g.alike(shape), **options, dilation=g.rng.randint(1, 2)),
            lambda: avg_pool1d(g.alike(shape), **options, **count),
            lambda: max_pool2d(g.alike(shape), **options),
            lambda: avg_pool2d(g.alike(shape), **options, **count),
        )
    )()


@step
def resized(g: Grower) -> Tensor:
    x = g.alike((g.rng.randint(1, 2), 2, 4, 5))
    return interpolate(x, size=(g.rng.randint(1, 9), g.rng.randint(1, 9)), **g.rng.choice(_MODES))


_MODES: tuple[dict[str, Any], ...] = (
    {"mode": "nearest"}, {"mode": "nearest-exact"}, {"mode": "bilinear"}, {"mode": "bicubic"},
    {"mode": "bilinear", "align_corners": True}, {"mode": "bicubic", "antialias": True},
)  # fmt: skip


# Attention and recurrence


@step
def attended(g: Grower) -> Tensor:
    n, m, kv, d = g.rng.randint(1, 4), g.rng.randint(1, 9), g.rng.choice((1, 2)), g.rng.choice((4, 16))
    q = g.alike((n, 2 * kv, d))
    k, v = (g.alike((m, kv, d)).cast(g.dtype(F16)) for _ in range(2))
    mask = g.make.input((n, m)) if g.rng.random() < 0.6 else None
    if g.rng.random() < 0.5:
        config = RoPE(d, interleaved=g.rng.random() < 0.5)
        q = rope(q, g.indices((n,), 50), config=config)
    return attention(q, k, v, mask, scale=0.3, softcap=g.rng.choice((0.0, 2.0)))


@step
def remembered(g: Grower) -> Tensor | None:
    """A state, new or known: read, and updated once in a graph."""
    rows, width = 6, g.rng.choice((3, 8))
    state = g.make.operand((rows, width), F32, "state")
    x = g.alike((rows, width)).cast(F32)
    kind = g.rng.randrange(7)
    if kind == 6:
        new = g.make.update(state, state.set(slice(1, 4), x[:3]))
        return new - state if g.rng.random() < 0.5 else new
    if kind == 0:
        return g.make.update(state, state * 0.5 + x.tanh())
    if kind == 1:
        new = g.make.update(state, state.set_rows(g.make.indices(2, rows), x[:2]))
        return new + state
    if kind == 2:
        new = g.make.update(state, state.set_rows(g.make.indices(2, rows), x[:2]))
        return state * new.mean(0)
    if kind == 3:
        seen = concat(state, x)
        g.make.update(state, seen[rows:])
        return seen
    if kind == 4:
        at = g.make.indices(3, rows)
        return g.make.update(state, state.set_rows(g.make.indices(3, rows), (state.take(at) + x[:3]).tanh()))
    other = g.make.operand((rows, width), F32, "state")
    g.make.update(state, other)
    g.make.update(other, g.rng.choice((state, x)))
    return state - other


@step
def convolved_in_time(g: Grower) -> Tensor:
    n, t, c, k = g.rng.randint(1, 2), g.rng.randint(1, 5), g.rng.choice((2, 4)), 4
    x, before = g.alike((n, t, c)), g.alike((n, k - 1, c))
    return ssm_conv(x.cast(F32), before.cast(F32), g.make.weight((c, k))) * 0.5


@step
def recurred(g: Grower) -> Tensor:
    """The recurrences, from a state that is kept: what they give is used, and so is the state after it."""
    n, t, heads = g.rng.randint(1, 2), g.rng.randint(1, 3), g.rng.choice((1, 2))
    dk = g.rng.choice((4, 6, 16, 64))
    dv = g.rng.choice((dk, dk, 3))

    def part(*shape: int) -> Tensor:
        return g.alike(shape).tanh() * 0.5

    def fraction(*shape: int) -> Tensor:
        return g.alike(shape).sigmoid()

    each, values = (n, t, heads, dk), (n, t, heads, dv)
    kind = g.rng.randrange(5)
    first = kind in (0, 3)  # values first
    shape = (n, heads, dv, dk) if first or kind == 4 else (n, heads, dk, dv)
    state = g.make.operand(shape, F32, "state")
    if kind == 0:
        g_shape = g.rng.choice(((n, t, heads), each))
        y = gated_delta_rule(part(*each), part(*each), part(*values), -fraction(*g_shape), fraction(n, t, heads), state)
    elif kind == 1:
        y = gated_linear_attention(part(*each), part(*each), part(*values), -fraction(*each), state)
    elif kind == 2:
        y = rwkv_wkv6(part(*each), part(*each), part(*values), fraction(*each), part(heads, dk), state)
    elif kind == 3:
        y = rwkv_wkv7(
            part(*each), fraction(*each), part(*each), part(*values), part(*each) * 0.2, part(*each) * 0.2, state
        )
    else:
        a, groups = g.rng.choice(((heads,), (heads, 1), (heads, dk))), g.rng.choice((1, heads))
        b, c = (part(n, t, groups, dk) for _ in range(2))
        softplus = g.rng.random() < 0.7
        y = ssm_scan(part(*values), fraction(n, t, heads), -fraction(*a), b, c, state, dt_softplus=softplus)
    g.make.update(state, y.state)
    return y.y
