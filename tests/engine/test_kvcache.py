"""CausalCache against a naive model of it: a set of (sequence, position) and what each token may look at."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.kvcache import CausalCache
from hotshoe_core import Backend, DType, ops
from hotshoe_core.errors import CacheFullError, DTypeError, GraphError
from hotshoe_core.ops import RoPE
from hotshoe_core.reference import open_reference
from hotshoe_loader import load_all

N_TOKENS, N_BATCH, WINDOW, HEADS, DIM = 24, 6, 4, 2, 8


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param not in [d.name for d in load_all().devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    with load_all().open(request.param) as opened:
        yield opened


def make(backend: Backend, windows: tuple[int, ...] = (0, WINDOW), dtype: DType = DType.F32) -> CausalCache:
    return CausalCache(
        backend, n_tokens=N_TOKENS, n_kv_heads=HEADS, head_dim=DIM, windows=windows, n_batch=N_BATCH, dtype=dtype
    )


def visible(cache: CausalCache, sequence: int, position: int, window: int) -> set[int]:
    """Positions a token may look at."""
    cells = cache.cells[window]
    mask = cells.mask(np.array([position]), np.array([sequence]))[0]
    return {int(p) for p in cells.positions[: len(mask)][mask]}


operations = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 3), st.integers(1, 6)),
    st.tuples(st.just("remove"), st.integers(0, 3), st.tuples(st.integers(0, 12), st.integers(0, 12))),
    st.tuples(st.just("copy"), st.integers(0, 3), st.tuples(st.integers(0, 3), st.integers(0, 12))),
    st.tuples(st.just("clear"), st.just(0), st.just(0)),
)


@given(st.lists(operations, max_size=25))
@settings(max_examples=150, deadline=None)
def test_what_tokens_see_is_what_a_naive_cache_says(steps: list[tuple[str, int, object]]) -> None:
    cache = make(open_reference())
    naive: dict[int, dict[int, int]] = {s: {} for s in range(4)}  # sequence → position → token
    n_tokens = 0

    def seen_next(sequence: int) -> set[int]:
        """Positions in the window of the token that comes next."""
        return {p for p in naive[sequence] if p > max(naive[sequence]) + 1 - WINDOW} if naive[sequence] else set()

    def room() -> int:
        held = {t for tokens in naive.values() for t in tokens.values()}
        in_window = {naive[s][p] for s in naive for p in seen_next(s)}
        return min(N_TOKENS - len(held), WINDOW + N_BATCH - len(in_window))

    for name, sequence, argument in steps:
        if name == "put":
            n = int(argument)  # type: ignore[call-overload]
            positions = np.arange(cache.length(sequence), cache.length(sequence) + n)
            if n > room():
                with pytest.raises(CacheFullError, match=f"room for {room()}"):
                    cache.place(positions, np.full(n, sequence))
                continue
            feeds = cache.place(positions, np.full(n, sequence))
            for window, cells in cache.cells.items():
                assert cells.positions[feeds[f"cache.cells.{window}"]].tolist() == positions.tolist()
                mask = feeds[f"cache.mask.{window}"]
                assert set(np.unique(mask)) <= {0, -np.inf}
                for row, p in zip(mask, positions, strict=True):  # all that the window shows is still there
                    before = {q for q in {*naive[sequence], *positions.tolist()} if q <= p and p - q < (window or 99)}
                    assert {int(q) for q in cells.positions[: len(row)][row == 0]} == before
            naive[sequence].update((int(p), n_tokens + i) for i, p in enumerate(positions))
            n_tokens += n
        elif name == "remove":
            start, _ = argument  # type: ignore[misc]
            cache.remove(sequence, start)
            naive[sequence] = {p: c for p, c in naive[sequence].items() if p < start}
            if not cache.can_resume(sequence, len(naive[sequence])):  # the window has passed: what runners do then
                cache.remove(sequence)
                naive[sequence] = {}
        elif name == "copy":
            target, n = argument  # type: ignore[misc]
            if target != sequence and cache.can_resume(sequence, min(n, len(naive[sequence]))):
                cache.copy_prefix(sequence, target, n)
                naive[target] = {p: c for p, c in naive[sequence].items() if p < n}
        else:
            for s in naive:
                cache.remove(s)
            naive = {s: {} for s in range(4)}
        assert cache.room(0b1111) == room()
        for s, tokens in naive.items():
            assert cache.length(s) == len(tokens)
            assert visible(cache, s, len(tokens), 0) == set(tokens)
            assert visible(cache, s, len(tokens), WINDOW) == seen_next(s)
            assert visible(cache, s, 2, 0) == {p for p in tokens if p <= 2}
            assert cache.can_resume(s, len(tokens))
            assert not cache.can_resume(s, len(tokens) + 1)


def test_positions_in_the_middle_are_removed() -> None:
    cache = make(open_reference(), windows=(0,))
    cache.place(np.arange(6), np.zeros(6, np.int64))
    cache.remove(0, 2, 4)
    assert visible(cache, 0, 6, 0) == {0, 1, 4, 5}
    assert [cache.can_resume(0, p) for p in (2, 3, 6)] == [True, False, False]


def test_a_window_needs_few_cells() -> None:
    cache = make(open_reference(), windows=(0, WINDOW))
    for start in range(0, N_TOKENS, 3):
        feeds = cache.place(np.arange(start, start + 3), np.zeros(3, np.int64))
    assert cache.cells[0].n == N_TOKENS
    assert cache.cells[WINDOW].n == WINDOW + N_BATCH
    assert (feeds[f"cache.mask.{WINDOW}"] == 0).sum() == 3 * WINDOW
    assert cache.can_resume(0, N_TOKENS - 1)
    assert not cache.can_resume(0, 12)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q8_0])
def test_rows_come_back(backend: Backend, dtype: DType) -> None:
    heads, dim = 2, 32  # a head is a block of Q8_0
    cache = CausalCache(backend, n_tokens=8, n_kv_heads=heads, head_dim=dim, windows=(0,), dtype=dtype)
    rng = np.random.default_rng(0)
    stored = []
    for position in range(3):
        feeds = cache.place(np.array([position]), np.array([0]))
        with backend.new_context() as ctx:
            k, v = ctx.input("k", (1, heads, dim)), ctx.input("v", (1, heads, dim))
            (layer,) = cache.layers(ctx, 1, cache.sizes)
            all_k, all_v = (t.cast(DType.F32) for t in layer.update(k, v))
            seen = layer.mask.cast(DType.F32)
            ctx.forward(all_k, all_v, seen)
            rows = rng.standard_normal((2, 1, heads, dim), np.float32)
            stored.append(rows)
            ctx.compute({k: rows[0], v: rows[1]} | {ctx.inputs[name]: value for name, value in feeds.items()})
            read = np.stack([all_k.read(), all_v.read()])
        used = np.flatnonzero(cache.cells[0].members)
        np.testing.assert_allclose(
            read[:, used], np.concatenate(stored, axis=1), atol=0.02 if dtype is DType.Q8_0 else 2e-3
        )


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_shift_turns_keys_as_their_new_positions_would(backend: Backend, interleaved: bool) -> None:
    rope = RoPE(DIM, interleaved=interleaved)
    cache = make(backend, windows=(0,))
    rng = np.random.default_rng(0)
    plain = rng.standard_normal((6, HEADS, DIM), np.float32)

    def turned(positions: np.ndarray) -> np.ndarray:
        with open_reference().new_context() as ctx:
            x, p = ctx.input("x", plain.shape), ctx.input("p", (6,), DType.I32)
            y = ops.rope(x, p, config=rope)
            return ctx.forward(y).compute({x: plain, p: positions}).read(y)

    positions = np.arange(6)
    feeds = cache.place(positions, np.zeros(6, np.int64))
    cells = feeds["cache.cells.0"]
    put(backend, cache, feeds, turned(positions))
    cache.remove(0, 1, 3)
    cache.shift(0, 3, -2, lambda layer: (rope, None))
    assert visible(cache, 0, 4, 0) == {0, 1, 2, 3}
    expected = turned(np.array([0, 0, 0, 1, 2, 3]))
    np.testing.assert_allclose(read_keys(backend, cache)[cells[3:]], expected[3:], atol=2e-5)
    np.testing.assert_allclose(read_keys(backend, cache)[cells[0]], expected[0], atol=2e-5)


def put(backend: Backend, cache: CausalCache, feeds: dict[str, np.ndarray], keys: np.ndarray) -> None:
    with backend.new_context() as ctx:
        k = ctx.input("k", keys.shape)
        (layer,) = cache.layers(ctx, len(keys), cache.sizes)
        ctx.forward(layer.update(k, k)[0].cast(DType.F32), layer.mask.cast(DType.F32))
        ctx.compute({k: keys} | {ctx.inputs[name]: value for name, value in feeds.items()})


def read_keys(backend: Backend, cache: CausalCache) -> np.ndarray:
    n = cache.cells[0].n
    with backend.new_context() as ctx:
        cells = ctx.input("cells", (n,), DType.I32)
        rows = cache._states[0][0].take(cells)
        ctx.forward(rows).compute({cells: np.arange(n)})
        return rows.read().reshape(n, HEADS, DIM)


def test_shared_cells_do_not_shift() -> None:
    cache = make(open_reference())
    cache.place(np.arange(4), np.zeros(4, np.int64))
    cache.copy_prefix(0, 1, 4)
    with pytest.raises(GraphError, match="shared"):
        cache.shift(0, 2, -1, lambda layer: (RoPE(DIM), None))
    cache.remove(1)
    with pytest.raises(GraphError, match="negative"):
        cache.shift(0, 2, -3, lambda layer: (RoPE(DIM), None))
    with pytest.raises(GraphError, match="out of range"):
        cache.length(63)


def test_a_type_whose_blocks_do_not_fit_a_head() -> None:
    with pytest.raises(DTypeError, match="heads of 8 elements"):
        make(open_reference(), dtype=DType.Q8_0)


def test_closing_frees_the_memory(backend: Backend) -> None:
    before = backend.memory().total
    cache = make(backend)
    assert backend.memory().total > before
    cache.close()
    assert backend.memory().total == before
