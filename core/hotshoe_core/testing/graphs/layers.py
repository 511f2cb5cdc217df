"""Graphs of whole layers, as in models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotshoe_core.ops import (
    RoPE,
    attention,
    avg_pool2d,
    concat,
    conv2d,
    conv_transpose2d,
    gated_delta_rule,
    interpolate,
    l2_norm,
    linear,
    max_pool2d,
    rms_norm,
    rope,
    ssm_conv,
    ssm_scan,
    swiglu,
)
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_core.testing.graphs._graph import F16, graph
from hotshoe_core.testing.run import Maker


@graph(F16)
def a_decoder_layer(m: Maker) -> Sequence[Tensor]:
    return [_decoder_layer(m, 3)]


@graph(F16)
def the_last_rows_of_a_decoder_layer(m: Maker) -> Sequence[Tensor]:
    """Only some tokens of a prompt are outputs: core computes only the keys and values of the others."""
    return [_decoder_layer(m, 24).take(m.indices(2, 24))]


def _decoder_layer(m: Maker, n: int) -> Tensor:
    heads, kv_heads, dim, cells = 4, 2, 16, 32
    width = heads * dim
    x, positions, at = m.input((n, width)), m.indices(n, 40), m.indices(n, cells)
    mask = m.input((n, cells), values=lambda rng, shape: np.where(rng.random(shape) < 0.3, -1e9, 0.0))
    config = RoPE(dim)
    h = rms_norm(x, m.weight((width,)), eps=1e-5)
    q = linear(h, m.weight((width, width), uses=("linear",))).reshape(n, heads, dim)
    k = linear(h, m.weight((kv_heads * dim, width))).reshape(n, kv_heads, dim)
    v = linear(h, m.weight((kv_heads * dim, width))).reshape(n, kv_heads, dim)
    q, k = rope(q, positions, config=config), rope(k, positions, config=config)
    keys, values = m.state((cells, kv_heads, dim), F16), m.state((cells, kv_heads, dim), F16)
    k, v = m.update(keys, keys.set_rows(at, k)), m.update(values, values.set_rows(at, v))
    y = attention(q, k, v, mask, scale=dim**-0.5).reshape(n, width)
    x = x + linear(y, m.weight((width, width)))
    h = rms_norm(x, m.weight((width,)), eps=1e-5)
    gate, up = linear(h, m.weight((2 * width, width))), linear(h, m.weight((2 * width, width)))
    return x + linear(swiglu(gate, up), m.weight((width, 2 * width)))


@graph()
def a_layer_with_states_of_fixed_size(m: Maker) -> Sequence[Tensor]:
    """Mamba-2: the states of convolution and scan are kept from step to step."""
    n, t, heads, dim, d_state, kernel = 2, 3, 4, 8, 16, 4
    width = heads * dim
    x = m.input((n, t, width))
    seen, state = m.state((n, kernel - 1, width)), m.state((n, heads, dim, d_state))
    h = ssm_conv(x, seen, m.weight((width, kernel)), m.weight((width,))).silu()
    tail = m.update(seen, concat(seen, x, axis=1)[:, -(kernel - 1) :])
    b, c = (linear(h, m.weight((d_state, width))).reshape(n, t, 1, d_state) for _ in range(2))
    dt, rates = linear(h, m.weight((heads, width))), -m.weight((heads,)).exp()
    y, new = ssm_scan(h.reshape(n, t, heads, dim), dt, rates, b, c, state, dt_softplus=True)
    new = m.update(state, new)
    return [linear(y.reshape(n, t, width), m.weight((width, width))) + x, tail, new, state]


@graph(F16)
def a_layer_of_linear_attention(m: Maker) -> Sequence[Tensor]:
    """Gated DeltaNet with a state in half precision: cast before it is stored, read without a cast."""
    n, t, heads, dim = 2, 3, 4, 16
    q, k, v = (m.input((n, t, heads, dim)) for _ in range(3))
    g, beta = -m.input((n, t, heads)).sqr(), m.input((n, t, heads)).sigmoid()
    state = m.state((n, heads, dim, dim), F16)
    y, new = gated_delta_rule(l2_norm(q), l2_norm(k), v, g, beta, state)
    m.update(state, new.cast(F16))
    return [y, new]


@graph()
def an_image_to_embeddings_and_back(m: Maker) -> Sequence[Tensor]:
    """Patches of an image as a vision model has them, pooled, and a decoder's way up."""
    x = m.input((1, 3, 28, 28))
    h = conv2d(x, m.weight((8, 3, 7, 7)), m.weight((8,)), stride=7)  # (1, 8, 4, 4)
    h = h + interpolate(m.weight((8, 6, 6)), size=4, mode="bicubic", align_corners=False)
    tokens = h.reshape(8, 16).T.softmax()
    pooled = avg_pool2d(tokens.T.reshape(1, 8, 4, 4), kernel_size=2)
    up = conv_transpose2d(pooled, m.weight((8, 4, 2, 2)), stride=2)
    return [tokens, pooled, max_pool2d(up.permute(0, 1, 3, 2), kernel_size=3, stride=1, padding=1)]


@graph()
def a_deep_graph(m: Maker) -> Sequence[Tensor]:
    x = y = m.input((4,))
    for i in range(300):
        y = (y * 0.5 + x).tanh() if i % 3 else y + x
    return [y]
