"""Our kernels of recurrent layers, against the formulas in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

import hotshoe
from hotshoe_core import Backend, BackendParams, Context, DType, Tensor, ops
from hotshoe_ggml.cpu.kept_states import find_kept_states

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


def scan(x: Array, dt: Array, a: Array, b: Array, c: Array, state: Array) -> tuple[Array, Array]:
    """The formula of ``ops.ssm_scan`` with dt_softplus, token by token in double precision."""
    heads, groups = x.shape[2], b.shape[2]
    which = [h * groups // heads for h in range(heads)]
    b, c = (of[:, :, which].astype(np.float64) for of in (b, c))
    dt = np.logaddexp(dt.astype(np.float64), 0)[..., None]
    s, y = state.astype(np.float64), np.zeros(x.shape)
    for i in range(x.shape[1]):
        s = s * np.exp(dt[:, i] * a)[..., None] + np.einsum("nhd,nhs->nhds", dt[:, i] * x[:, i], b[:, i])
        y[:, i] = np.einsum("nhds,nhs->nhd", s, c[:, i])
    return y, s


def scan_operands(n: int, t: int, heads: int, groups: int, dim: int, d_state: int) -> list[Array]:
    x, state = draw.standard_normal((n, t, heads, dim)), draw.standard_normal((n, heads, dim, d_state))
    b, c = (draw.standard_normal((n, t, groups, d_state)) for _ in range(2))
    a, dt = -draw.uniform(0.1, 2, (heads, 1)), draw.uniform(-8, 2, (n, t, heads))
    return [of.astype(np.float32) for of in (x, dt, a, b, c, state)]


@pytest.mark.parametrize("d_state", [32, 64, 128, 256])
@pytest.mark.parametrize(
    ("n", "t", "heads", "groups", "dim"), [(1, 1, 4, 4, 64), (3, 70, 4, 2, 37), (2, 33, 6, 1, 64), (1, 64, 1, 1, 1)]
)
def test_the_scan(backend: Backend, n: int, t: int, heads: int, groups: int, dim: int, d_state: int) -> None:
    arrays = scan_operands(n, t, heads, groups, dim, d_state)
    results = computed(backend, "ssm_scan", arrays, dt_softplus=True)
    for result, expected in zip(results, scan(*arrays), strict=True):
        assert np.abs(result - expected).max() <= 4e-6 * np.abs(expected).max()


Feeds = dict[Tensor, Array]


def recurrence(ctx: Context, op: str, arrays: list[Array], before: Tensor) -> tuple[Tensor, Tensor, Feeds]:
    """The outputs and the new states of the op after ``before``, and what to feed."""
    feeds = {ctx.input(f"x{i}", a.shape): a for i, a in enumerate(arrays[:-1])}
    attrs = {"dt_softplus": True} if op == "ssm_scan" else {}
    y, new = getattr(ops, op)(*feeds, before.reshape(*arrays[-1].shape), **attrs)
    return y, new, feeds


@pytest.mark.parametrize("op", ["gated_delta_rule", "ssm_scan"])
@pytest.mark.parametrize("t", [1, 40])
@pytest.mark.parametrize(
    ("read", "written"),
    [
        ([3], [3]),
        ([2], [4]),
        ([1, 2, 5], [1, 2, 5]),
        ([0, 0, 0], [1, 4, 2]),
        ([1, 2, 3], [2, 3, 1]),  # rows that are written before another sequence reads them
        ([3, 2, 1], [5, 3, 2]),
    ],
)
@pytest.mark.parametrize("also_read", [False, True], ids=["alone", "also-read"])
def test_states_stay_in_the_cache(
    backend: Backend, op: str, t: int, read: list[int], written: list[int], also_read: bool
) -> None:
    """All bits are those of an op that gets a copy of the states; also if a node has another use for them."""
    n = len(read)
    drawn = delta_operands(n, t, 4, 2, 128, 37, each=False)
    arrays = drawn if op == "gated_delta_rule" else scan_operands(n, t, 4, 2, 37, 64)
    rows = draw.standard_normal((6, arrays[-1][0].size)).astype(np.float32)
    with backend.new_context() as ctx:
        states = ctx.input("states", (n, rows.shape[1]))
        y, new, feeds = recurrence(ctx, op, arrays, states)
        ctx.forward(y, new).compute({**feeds, states: rows[read]})
        expected_y, expected_rows = y.read(), rows.copy()
        expected_rows[written] = new.read().reshape(n, -1)

    cache = backend.state(rows.shape, DType.F32, "cache")
    with backend.new_context() as ctx:
        values = ctx.input("rows", rows.shape)
        ctx.update(cache, values).compute({values: rows})
    with backend.new_context() as ctx:
        reads, writes = (ctx.input(name, (n,), DType.I32) for name in ("read", "written"))
        before = cache.take(reads)
        y, new, feeds = recurrence(ctx, op, arrays, before)
        ctx.update(cache, cache.set_rows(writes, new.reshape(n, -1)))
        indices = {reads: np.array(read, np.int32), writes: np.array(written, np.int32)}
        ctx.forward(y, *([before] if also_read else [])).compute({**feeds, **indices})
        assert np.array_equal(y.read(), expected_y)
        if also_read:
            assert np.array_equal(before.read(), rows[read])
        kept = list(find_kept_states(ctx.graph(), lambda node: True))
        assert len(kept) == (0 if also_read else 1)
    with backend.new_context() as ctx:
        assert np.array_equal(ctx.forward(cache).compute().read(cache), expected_rows)


def test_a_state_in_several_rows_of_a_cache_is_copied(backend: Backend) -> None:
    """A kernel that took each row as a whole state would read beyond the cache."""
    arrays = delta_operands(1, 3, 4, 2, 64, 32, each=False)
    state = arrays[-1]
    expected_y, expected_state = computed(backend, "gated_delta_rule", arrays)
    cache = backend.state((2, state.size // 2), DType.F32, "cache")
    with backend.new_context() as ctx:
        values = ctx.input("rows", cache.shape)
        ctx.update(cache, values).compute({values: state.reshape(cache.shape)})
    with backend.new_context() as ctx:
        rows = ctx.input("rows", (2,), DType.I32)
        y, new, feeds = recurrence(ctx, "gated_delta_rule", arrays, cache.take(rows))
        ctx.update(cache, cache.set_rows(rows, new.reshape(2, -1)))
        ctx.forward(y).compute({**feeds, rows: np.array([0, 1], np.int32)})
        assert np.array_equal(y.read(), expected_y)
        assert not list(find_kept_states(ctx.graph(), lambda node: True))
    with backend.new_context() as ctx:
        assert np.array_equal(ctx.forward(cache).compute().read(cache), expected_state.reshape(cache.shape))


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
