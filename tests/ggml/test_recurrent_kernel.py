"""Our kernels of recurrent layers, against the formulas in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe_core import Backend, BackendParams, Tensor, ops

Array = np.ndarray[Any, Any]
draw = np.random.default_rng(5)


@pytest.fixture(params=[1, 2, 3])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """The CPU, with one thread and with several."""
    registry = hotshoe.load_all()
    if "cpu" not in [d.name for d in registry.devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    with registry.open("cpu", BackendParams(n_threads=request.param)) as opened:
        yield opened


def computed(backend: Backend, op: str, arrays: list[Array], **attrs: Any) -> tuple[Array, ...]:
    """The results of an op whose operands have gaps between their rows, in which NaN stands."""
    with backend.new_context() as ctx:
        inputs = [ctx.input(str(i), (*a.shape[:-1], 2 * a.shape[-1])) for i, a in enumerate(arrays)]
        operands = [x[..., : a.shape[-1]] for x, a in zip(inputs, arrays, strict=True)]
        found = getattr(ops, op)(*operands, **attrs)
        results = (found,) if isinstance(found, Tensor) else tuple(found)
        doubled = [np.concatenate([a, np.full_like(a, np.nan)], -1) for a in arrays]
        ctx.forward(*results).compute(dict(zip(inputs, doubled, strict=True)))
        assert {p.how for p in ctx.placements() if p.op == op} == {"native"}
        return tuple(result.read() for result in results)


def delta_rule(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, scale: float, tiled: bool
) -> tuple[Array, Array]:
    """The formula of ``ops.gated_delta_rule``, token by token in double precision."""
    (n, t, heads, dv), k_heads = v.shape, k.shape[2]
    which = [h % k_heads if tiled else h * k_heads // heads for h in range(heads)]
    q, k = (x[:, :, which].astype(np.float64) for x in (q, k))
    decay = np.exp(g.astype(np.float64)).reshape(n, t, heads, 1, -1)
    s, y = state.astype(np.float64), np.zeros((n, t, heads, dv))
    for i in range(t):
        s = s * decay[:, i]
        error = v[:, i] - np.einsum("nhvk,nhk->nhv", s, k[:, i])
        s = s + np.einsum("nhv,nhk->nhvk", beta[:, i, :, None] * error, k[:, i])
        y[:, i] = scale * np.einsum("nhvk,nhk->nhv", s, q[:, i])
    return y, s


def delta_operands(n: int, t: int, heads: int, k_heads: int, dk: int, dv: int, *, each: bool) -> list[Array]:
    q, k = (draw.standard_normal((n, t, k_heads, dk)) for _ in range(2))
    k /= np.linalg.norm(k, axis=-1, keepdims=True)
    v, state = draw.standard_normal((n, t, heads, dv)), draw.standard_normal((n, heads, dv, dk))
    g = -np.abs(draw.standard_normal((n, t, heads, dk) if each else (n, t, heads)))
    return [x.astype(np.float32) for x in (q, k, v, g, draw.uniform(0, 1, (n, t, heads)), state)]


@pytest.mark.parametrize("each", [False, True], ids=["one-decay", "decays-of-elements"])
@pytest.mark.parametrize("dk", [64, 128])
@pytest.mark.parametrize(
    ("n", "t", "heads", "k_heads", "dv", "tiled"),
    [(1, 1, 4, 4, 128, False), (3, 70, 4, 2, 37, True), (2, 33, 6, 2, 64, False), (1, 64, 1, 1, 1, False)],
)
def test_the_delta_rule(
    backend: Backend, n: int, t: int, heads: int, k_heads: int, dk: int, dv: int, tiled: bool, each: bool
) -> None:
    arrays = delta_operands(n, t, heads, k_heads, dk, dv, each=each)
    results = computed(backend, "gated_delta_rule", arrays, scale=0.25, tiled=tiled)
    for result, expected in zip(results, delta_rule(*arrays, 0.25, tiled), strict=True):
        assert np.abs(result - expected).max() <= 2e-6 * np.abs(expected).max()


def test_a_cut_changes_no_bit(backend: Backend) -> None:
    *series, state = delta_operands(1, 75, 4, 4, 128, 128, each=False)
    y, whole = computed(backend, "gated_delta_rule", [*series, state])
    first, between = computed(backend, "gated_delta_rule", [*(x[:, :41] for x in series), state])
    second, last = computed(backend, "gated_delta_rule", [*(x[:, 41:] for x in series), between])
    assert np.array_equal(np.concatenate([first, second], 1), y)
    assert np.array_equal(last, whole)


@pytest.mark.parametrize("taps", [2, 4, 7, 9])
@pytest.mark.parametrize(("n", "t", "channels"), [(1, 1, 600), (3, 2, 17), (2, 40, 513)])
@pytest.mark.parametrize("biased", [False, True])
def test_the_convolution(backend: Backend, n: int, t: int, channels: int, taps: int, biased: bool) -> None:
    shapes = [(n, t, channels), (n, taps - 1, channels), (channels, taps), *([(channels,)] if biased else [])]
    x, before, weight, *bias = arrays = [draw.standard_normal(shape).astype(np.float32) for shape in shapes]
    [y] = computed(backend, "ssm_conv", arrays)
    seen = np.concatenate([before, x], 1).astype(np.float64)
    expected = sum(seen[:, i : i + t] * weight[:, i] for i in range(taps)) + sum(bias)
    assert np.abs(y - expected).max() <= 2e-6 * np.abs(expected).max()
