"""Chunked forms of recurrences against their steps in float64: decays from none to complete, and keys that repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hotshoe_core import ops
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.graphs.graph import Graph, lower
from hotshoe_core.ops import Recurrence
from hotshoe_core.tensors.tensor import TABLE
from tests.core.test_ops_recurrent import decomposed
from tests.support.ops import Array, error

DRAW = np.random.default_rng(0)
DECAYS: dict[str, Callable[[tuple[int, ...]], Array]] = {
    "none": np.zeros,
    "weak": lambda shape: -1e-3 * DRAW.random(shape),
    "strong": lambda shape: -100 * DRAW.random(shape),  # a chunk's decay is e⁻³²⁰⁰
    "strong, then weak": lambda shape: np.where(DRAW.random(shape) < 0.05, -1000, -1e-3),  # sums would lose digits
    "everything forgotten": lambda shape: np.where(DRAW.random(shape) < 0.05, -np.inf, -1e-2),
}
N, T, HEADS, DK, DV = 2, 150, 4, 16, 6


def by_steps(q: Array, k: Array, v: Array, g: Array, state: Array, beta: Array | None = None) -> tuple[Array, Array]:
    """One step after the other, in float64."""
    s, ys = state.astype(np.float64), []
    for t in range(T):
        s = s * np.exp(g[:, t].astype(np.float64))[:, :, None]
        new: Array = v[:, t]
        if beta is not None:
            new = (new - np.einsum("nhvk,nhk->nhv", s, k[:, t])) * beta[:, t, :, None]
        s = s + new[..., None] * k[:, t][:, :, None]
        ys.append(np.einsum("nhvk,nhk->nhv", s, q[:, t]))
    return np.stack(ys, 1), s


def normal(*shape: int) -> Array:
    return DRAW.standard_normal(shape).astype(np.float32)


def keys_of(same: bool) -> Array:
    """Keys of length 1; the same one at each step, if ``same``."""
    k = np.repeat(normal(N, 1, HEADS, DK), T, 1) if same else normal(N, T, HEADS, DK)
    return k / np.linalg.norm(k, axis=-1, keepdims=True)


@pytest.mark.parametrize("same", [False, True], ids=["different keys", "one key"])
@pytest.mark.parametrize("decay", DECAYS)
def test_the_delta_rule(decay: str, same: bool) -> None:
    q, k, v, state = normal(N, T, HEADS, DK), keys_of(same), normal(N, T, HEADS, DV), normal(N, HEADS, DV, DK)
    beta = DRAW.random((N, T, HEADS)).astype(np.float32) ** 0.2
    for shape in ((N, T, HEADS), (N, T, HEADS, DK)):
        g = DECAYS[decay](shape).astype(np.float32)
        want = by_steps(q, k, v, g.reshape(N, T, HEADS, -1), state, beta)
        assert error(decomposed(ops.gated_delta_rule, q, k, v, g, beta, state, scale=1.0), want) < 2e-6


@pytest.mark.parametrize("decay", DECAYS)
def test_linear_attention(decay: str) -> None:
    q, k, v, state = normal(N, T, HEADS, DK), keys_of(False), normal(N, T, HEADS, DV), normal(N, HEADS, DV, DK)
    g = DECAYS[decay]((N, T, HEADS, DK)).astype(np.float32)
    y, s = by_steps(q, k, v, g, state)
    rows_first = np.ascontiguousarray(state.swapaxes(-1, -2))
    got = decomposed(ops.gated_linear_attention, q, k, v, g, rows_first, scale=1.0)
    assert error(got, (y, s.swapaxes(-1, -2))) < 2e-6


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("decay", ["none", "weak", "strong", "strong, then weak"])
@pytest.mark.parametrize("per_state", [False, True])
def test_the_scan(per_state: bool, decay: str, groups: int) -> None:
    q, k = normal(N, T, groups, DK), keys_of(False)[:, :, :groups]
    x, state = normal(N, T, HEADS, DV), normal(N, HEADS, DV, DK)
    dt = -DECAYS[decay]((N, T, HEADS)).astype(np.float32)
    rates = -DRAW.uniform(0.5, 2, (HEADS, DK if per_state else 1)).astype(np.float32)
    shared = [np.repeat(each, HEADS // groups, 2) for each in (q, k)]
    want = by_steps(*shared, x * dt[..., None], dt[..., None] * rates, state)
    assert error(decomposed(ops.ssm_scan, x, dt, rates, k, q, state), want) < 2e-6


@pytest.mark.parametrize("decay", DECAYS)
def test_rwkv(decay: str) -> None:
    r, k, v = normal(N, T, HEADS, DK), keys_of(False), normal(N, T, HEADS, DV)
    w = np.exp(DECAYS[decay]((N, T, HEADS, DK))).astype(np.float32)
    u, state = normal(HEADS, DK), normal(N, HEADS, DK, DV)
    s, ys = state.astype(np.float64), []
    for t in range(T):
        new = k[:, t, :, :, None] * v[:, t, :, None]
        ys.append(np.einsum("nhkv,nhk->nhv", s + u[..., None] * new, r[:, t]))
        s = s * w[:, t, ..., None] + new
    assert error(decomposed(ops.rwkv_wkv6, r, k, v, w, u, state), (np.stack(ys, 1), s)) < 2e-6

    a, b = -k, k * DRAW.random((N, T, HEADS, DK)).astype(np.float32)
    state = normal(N, HEADS, DV, DK)
    s, ys = state.astype(np.float64), []
    for t in range(T):
        removed = np.einsum("nhvk,nhk->nhv", s, a[:, t])
        s = s * w[:, t, :, None] + removed[..., None] * b[:, t, :, None] + v[:, t, ..., None] * k[:, t, :, None]
        ys.append(np.einsum("nhvk,nhk->nhv", s, r[:, t]))
    assert error(decomposed(ops.rwkv_wkv7, r, w, k, v, a, b, state), (np.stack(ys, 1), s)) < 2e-6


def n_nodes(function: Callable[..., Recurrence], t: int, *shapes: tuple[int, ...], **attrs: Any) -> int:
    """The nodes of the decomposition for ``t`` steps; each shape lacks the axes of sequences and steps."""
    ctx = open_reference().new_context()
    *series, state = shapes
    inputs = [ctx.input(f"x{i}", (1, t, *shape)) for i, shape in enumerate(series)]
    graph, _ = lower(
        Graph.trace(function(*inputs, ctx.input("state", (1, *state)), **attrs)), lambda n: not TABLE[n.op].composite
    )
    return len(graph.nodes)


HEAD, KEY = (32,), (32, 8)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (ops.gated_delta_rule, ((16, 8), (16, 8), KEY, HEAD, HEAD, (32, 8, 8))),
        (ops.gated_delta_rule, (KEY, KEY, KEY, KEY, HEAD, (32, 8, 8))),
        (ops.gated_linear_attention, (KEY, KEY, KEY, KEY, (32, 8, 8))),
        (ops.rwkv_wkv7, (KEY, KEY, KEY, KEY, KEY, KEY, (32, 8, 8))),
    ],
    ids=["gated delta", "Kimi delta", "gated linear", "RWKV-7"],
)
def test_a_prompt_is_no_loop_over_tokens(function: Callable[..., Recurrence], shapes: Any) -> None:
    """24 such layers in a graph of 512 tokens have fewer than 12,000 nodes, with room for the rest of the model."""
    assert n_nodes(function, 512, *shapes) < 400
    assert n_nodes(function, 1024, *shapes) < 500


@pytest.mark.parametrize("rates", [(32,), (32, 8)])
def test_nor_is_the_scan(rates: tuple[int, ...]) -> None:
    def scan(x: Any, dt: Any, b: Any, c: Any, state: Any) -> Recurrence:
        return ops.ssm_scan(x, dt, state.context.input("rates", rates), b, c, state)

    shapes = (KEY, HEAD, (1, 8), (1, 8), (32, 8, 8))
    assert n_nodes(scan, 512, *shapes) < 400
    assert n_nodes(scan, 1024, *shapes) < 500
