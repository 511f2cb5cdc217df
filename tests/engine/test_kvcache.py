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

N_CELLS, HEADS, DIM = 24, 2, 8


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param not in [d.name for d in load_all().devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    with load_all().open(request.param) as opened:
        yield opened


def make(backend: Backend, windows: tuple[int, ...] = (0, 4), dtype: DType = DType.F32) -> CausalCache:
    return CausalCache(backend, n_cells=N_CELLS, n_kv_heads=HEADS, head_dim=DIM, windows=windows, dtype=dtype)


def visible(cache: CausalCache, sequence: int, position: int, window: int) -> set[int]:
    """Positions a token may look at, as the mask says."""
    n = cache.n_used
    mask = cache.masks(np.array([position]), np.array([sequence]), n)[window][0]
    cells = np.flatnonzero(mask == 0)
    assert set(np.flatnonzero(mask != 0)) == {i for i in range(n) if np.isneginf(mask[i])}
    return {int(p) for p in cache.positions[cells]}


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
    naive: dict[int, dict[int, int]] = {s: {} for s in range(4)}  # sequence → position → cell
    for name, sequence, argument in steps:
        if name == "put":
            n = int(argument)  # type: ignore[call-overload]
            positions = np.arange(cache.length(sequence), cache.length(sequence) + n)
            used = {cell for cells in naive.values() for cell in cells.values()}
            if len(used) + n > N_CELLS:
                with pytest.raises(CacheFullError, match=f"room for {N_CELLS - len(used)}"):
                    cache.place(positions, np.full(n, sequence))
                continue
            cells = cache.place(positions, np.full(n, sequence))
            assert not used & set(cells.tolist())
            naive[sequence].update(zip(positions.tolist(), cells.tolist(), strict=True))
        elif name == "remove":
            start, stop = argument  # type: ignore[misc]
            cache.remove(sequence, start, stop)
            naive[sequence] = {p: c for p, c in naive[sequence].items() if not start <= p < stop}
        elif name == "copy":
            target, n = argument  # type: ignore[misc]
            if target != sequence:
                cache.copy_prefix(sequence, target, n)
                naive[target] = {p: c for p, c in naive[sequence].items() if p < n}
        else:
            cache.clear()
            naive = {s: {} for s in range(4)}
        for s, cells in naive.items():
            at = max(cells, default=0)
            assert cache.length(s) == (at + 1 if cells else 0)
            assert visible(cache, s, at, 0) == set(cells)
            assert visible(cache, s, at, 4) == {p for p in cells if p > at - 4}
            assert visible(cache, s, 2, 0) == {p for p in cells if p <= 2}
            assert cache.can_resume(s, at + 1) == (set(range(at + 1)) <= set(cells))


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q8_0])
def test_rows_come_back(backend: Backend, dtype: DType) -> None:
    heads, dim = 2, 32  # a head is a block of Q8_0
    cache = CausalCache(backend, n_cells=8, n_kv_heads=heads, head_dim=dim, windows=(0,), dtype=dtype)
    rng = np.random.default_rng(0)
    stored = []
    for position in range(3):
        cells = cache.place(np.array([position]), np.array([0]))
        with backend.new_context() as ctx:
            n = cache.n_used
            inputs = cache.inputs(ctx, 1, n)
            k, v = ctx.input("k", (1, heads, dim)), ctx.input("v", (1, heads, dim))
            (layer,) = cache.layers(ctx, inputs)
            all_k, all_v = (t.cast(DType.F32) for t in layer.update(k, v))
            ctx.forward(all_k, all_v)
            rows = rng.standard_normal((2, 1, heads, dim), np.float32)
            stored.append(rows)
            masks = cache.masks(np.array([position]), np.array([0]), n)
            ctx.compute({k: rows[0], v: rows[1], inputs.cells: cells, inputs.masks[0]: masks[0]})
            read = np.stack([all_k.read(), all_v.read()])
        used = np.flatnonzero(cache.members)
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
    cells = cache.place(positions, np.zeros(6, np.int64))
    put(backend, cache, cells, turned(positions))
    cache.remove(0, 1, 3)
    cache.shift(0, 3, -2, rope)
    assert sorted(cache.positions[cache.members != 0]) == [0, 1, 2, 3]
    expected = turned(np.array([0, 0, 0, 1, 2, 3]))
    np.testing.assert_allclose(read_keys(backend, cache)[cells[3:]], expected[3:], atol=2e-5)
    np.testing.assert_allclose(read_keys(backend, cache)[cells[0]], expected[0], atol=2e-5)


def put(backend: Backend, cache: CausalCache, cells: np.ndarray, keys: np.ndarray) -> None:
    with backend.new_context() as ctx:
        inputs = cache.inputs(ctx, len(cells), cache.n_used)
        k = ctx.input("k", keys.shape)
        (layer,) = cache.layers(ctx, inputs)
        ctx.forward(layer.update(k, k)[0].cast(DType.F32))
        masks = {m: np.zeros(m.shape, m.dtype.numpy) for m in inputs.masks.values()}
        ctx.compute({k: keys, inputs.cells: cells, **masks})


def read_keys(backend: Backend, cache: CausalCache) -> np.ndarray:
    with backend.new_context() as ctx:
        cells = ctx.input("cells", (cache.n_cells,), DType.I32)
        rows = cache._states[0][0].take(cells)
        ctx.forward(rows).compute({cells: np.arange(cache.n_cells)})
        return rows.read().reshape(cache.n_cells, HEADS, DIM)


def test_shared_cells_do_not_shift() -> None:
    cache = make(open_reference())
    cache.place(np.arange(4), np.zeros(4, np.int64))
    cache.copy_prefix(0, 1, 4)
    with pytest.raises(GraphError, match="shared"):
        cache.shift(0, 2, -1, RoPE(DIM))
    cache.remove(1)
    with pytest.raises(GraphError, match="negative"):
        cache.shift(0, 2, -3, RoPE(DIM))
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
