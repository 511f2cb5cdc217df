"""CausalCache against a naive model: a set of (sequence, position), and what each token attends to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotshoe.kvcache import Allocation, AttentionSpec, Cache, CausalCache, LayerSpec, RecurrentSpec, make_cache
from hotshoe.kvcache import cells as cells_module
from hotshoe.kvcache.cells import Reach
from hotshoe.kvcache.spec import Part
from hotshoe_core import Backend, CacheConfig, DType, ops
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import CacheFullError, DTypeError, GraphError, ModelDefinitionError, ShapeError
from hotshoe_core.ops import RoPE
from hotshoe_loader import load_all

N_TOKENS, N_BATCH, WINDOW, CHUNK, HEADS, DIM = 24, 6, 4, 4, 2, 8
ALL, NEAR, CHUNKED = Reach(), Reach(window=WINDOW), Reach(chunk=CHUNK)


@pytest.fixture(scope="module", params=["usual", 4], autouse=True)
def block(request: pytest.FixtureRequest) -> Iterator[None]:
    """How many cells a text takes at once: more than these caches have, or a few."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "usual":
            patch.setattr(cells_module, "_CELLS_OF_TEXT", request.param)
        yield


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param not in [d.name for d in load_all().devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    with load_all().open(request.param) as opened:
        yield opened


def attention(**changes: Any) -> AttentionSpec:
    return AttentionSpec(**{"n_kv_heads": HEADS, "k_dim": DIM} | changes)


LAYERS = (attention(), attention(window=WINDOW), attention(chunk=CHUNK), None)


def make(backend: Backend, spec: Sequence[LayerSpec] = LAYERS, dtype: DType = DType.F32, **sizes: int) -> CausalCache:
    return CausalCache(backend, spec, **{"n_tokens": N_TOKENS, "n_ubatch": N_BATCH} | sizes, dtype=dtype)


def with_lists(spec: Sequence[LayerSpec] = LAYERS, **sizes: int) -> CausalCache:
    """A cache that gives lists and masks."""
    backend = open_reference()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(backend), "cache_config", lambda self: CacheConfig(64, reads_lists=True))
        cache = make(backend, spec, **sizes)
    cache._masked.update(cache.cells)  # as if a model had asked for them
    return cache


def listed(cache: CausalCache, feeds: dict[str, np.ndarray], reach: Reach) -> list[list[int]]:
    """Return the positions that each row reads by its list."""
    cells, ranges = feeds[f"cache.lists.{reach}"], feeds[f"cache.ranges.{reach}"]
    assert ((ranges[:, 0] <= ranges[:, 1]) & (ranges[:, 1] < ranges[:, 2]) & (ranges[:, 2] <= len(cells))).all()
    return [cache.cells[reach].positions[cells[start:stop]].tolist() for _, start, stop in ranges]


def put(cache: Cache, *allocations: Allocation, n_rows: int = 0) -> dict[str, np.ndarray]:
    """Allocate and commit, as if the graph had been computed."""
    feeds = cache.allocate(allocations, n_rows or sum(p.n for p in allocations))
    cache.commit()
    return feeds


def visible(cache: CausalCache, sequence: int, position: int, reach: Reach) -> set[int]:
    """Return the positions that a token attends to."""
    cells = cache.cells[reach]
    mask = cells.mask(np.array([position]), np.array([sequence]))[0]
    return {int(p) for p in cells.positions[: len(mask)][mask]}


operations = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 3), st.integers(1, 6)),
    st.tuples(st.just("remove"), st.integers(0, 3), st.tuples(st.integers(0, 12), st.integers(0, 12))),
    st.tuples(st.just("copy"), st.integers(0, 3), st.tuples(st.integers(0, 3), st.integers(0, 12))),
    st.tuples(st.just("clear"), st.just(0), st.just(0)),
)


@given(st.lists(operations, max_size=25))
@example([("put", 0, 3), ("put", 1, 6), ("put", 0, 6)])  # two reaches are full, the second one more so
@settings(max_examples=60, deadline=None)
def test_what_tokens_see_is_what_a_naive_cache_says(steps: list[tuple[str, int, object]]) -> None:
    cache = with_lists()
    naive: dict[int, dict[int, int]] = {s: {} for s in range(4)}  # sequence → position → token
    n_tokens = 0

    def seen(positions: set[int], at: int, reach: Reach) -> set[int]:
        first = at - WINDOW + 1 if reach.window else at // CHUNK * CHUNK if reach.chunk else 0
        return {p for p in positions if first <= p <= at}

    def seen_next(sequence: int, reach: Reach) -> set[int]:
        """Return the positions that the next token attends to."""
        return seen(set(naive[sequence]), max(naive[sequence]) + 1, reach) if naive[sequence] else set()

    def room() -> int:
        held = {t for tokens in naive.values() for t in tokens.values()}
        near = [N_TOKENS - len(held)]
        for reach in (NEAR, CHUNKED):
            needed = {naive[s][p] for s in naive for p in seen_next(s, reach)}
            near.append(reach.most + N_BATCH - len(needed))
        return min(near)

    for name, sequence, argument in steps:
        if name == "put":
            n = int(argument)  # type: ignore[call-overload]
            start = cache.length(sequence)
            positions = range(start, start + n)
            if n > room():
                with pytest.raises(CacheFullError, match=f"room for {room()}"):
                    cache.allocate([Allocation(sequence, start, n)], n)
                cache.rollback()
                continue
            before = [cells.used for cells in cache.cells.values()]
            cache.allocate([Allocation(sequence, start, n)], n)
            cache.rollback()  # as after Ctrl-C: nothing is lost that a token attends to
            assert cache.length(sequence) == start
            assert cache.can_resume(sequence, start)
            assert all(np.count_nonzero(c.used) <= np.count_nonzero(m) for c, m in zip(cache.cells.values(), before))
            feeds = put(cache, Allocation(sequence, start, n))
            for reach, cells in cache.cells.items():
                assert cells.positions[feeds[f"cache.cells.{reach}"]].tolist() == list(positions)
                mask = feeds[f"cache.mask.{reach}"]
                assert set(np.unique(mask)) <= {0, -np.inf}
                lists = listed(cache, feeds, reach)
                for row, p, read in zip(mask, positions, lists, strict=True):
                    expected = seen({*naive[sequence], *positions}, p, reach)  # all of it is still there
                    assert read == sorted(expected)
                    assert {int(q) for q in cells.positions[: len(row)][row == 0]} == expected
                    assert set(feeds[f"cache.positions.{reach}"][row == 0].tolist()) == expected
            naive[sequence].update((p, n_tokens + i) for i, p in enumerate(positions))
            n_tokens += n
        elif name == "remove":
            start, _ = argument  # type: ignore[misc]
            cache.remove(sequence, start)
            naive[sequence] = {p: c for p, c in naive[sequence].items() if p < start}
            n = cache.resume_position(sequence, len(naive[sequence]))  # a window may have passed: what runners do then
            assert n == len(naive[sequence]) or not cache.can_resume(sequence, len(naive[sequence]))
            cache.remove(sequence, n)
            naive[sequence] = {p: c for p, c in naive[sequence].items() if p < n}
        elif name == "copy":
            target, n = argument  # type: ignore[misc]
            if target != sequence and cache.can_resume(sequence, min(n, len(naive[sequence]))):
                cache.copy_prefix(sequence, target, n)
                naive[target] = {p: c for p, c in naive[sequence].items() if p < n}
        else:
            for s in naive:
                cache.remove(s)
            naive = {s: {} for s in range(4)}
        assert min(cells.room(0b1111) for cells in cache.cells.values()) == room()
        for s, tokens in naive.items():
            assert cache.length(s) == len(tokens)
            assert visible(cache, s, len(tokens), ALL) == set(tokens)
            assert visible(cache, s, len(tokens), NEAR) == seen_next(s, NEAR)
            assert visible(cache, s, len(tokens), CHUNKED) == seen_next(s, CHUNKED)
            assert visible(cache, s, 2, ALL) == {p for p in tokens if p <= 2}
            assert cache.can_resume(s, len(tokens))
            assert not cache.can_resume(s, len(tokens) + 1)


def test_positions_in_the_middle_are_removed() -> None:
    cache = make(open_reference(), (attention(),))
    put(cache, Allocation(0, 0, 6))
    cache.remove(0, 2, 4)
    assert visible(cache, 0, 6, ALL) == {0, 1, 4, 5}
    assert [cache.can_resume(0, p) for p in (2, 3, 6)] == [True, False, False]


def test_a_window_needs_few_cells() -> None:
    cache = make(open_reference(), (attention(), attention(window=WINDOW)))
    for start in range(0, N_TOKENS, 3):
        feeds = put(cache, Allocation(0, start, 3))
    assert (cache.cells[ALL].n, cache.cells[NEAR].n) == (N_TOKENS, WINDOW + N_BATCH)
    assert (feeds[f"cache.mask.{NEAR}"] == 0).sum() == 3 * WINDOW
    assert cache.can_resume(0, N_TOKENS - 1)
    assert [cache.resume_position(0, n) for n in (N_TOKENS, 12, 3)] == [N_TOKENS, 0, 0]


def test_a_chunk_may_be_resumed_at_its_beginning() -> None:
    cache = make(open_reference(), (attention(), attention(chunk=CHUNK)))
    for start in range(0, N_TOKENS, 3):
        put(cache, Allocation(0, start, 3))
    assert cache.cells[CHUNKED].n == CHUNK + N_BATCH
    assert [cache.resume_position(0, n) for n in (N_TOKENS, 11, 8, 3)] == [N_TOKENS, 8, 8, 0]


def test_rows_of_padding_have_cells_of_their_own_and_see_something() -> None:
    cache = make(open_reference(), n_scratch=5)
    cells = {}
    for start in (0, 6, 12, 18):
        feeds = put(cache, Allocation(0, start, 6), n_rows=11)
        for reach in cache.cells:
            at, mask = feeds[f"cache.cells.{reach}"], feeds[f"cache.mask.{reach}"]
            assert len(set(at)) == 11
            assert cells.setdefault(reach, set(at[6:])) == set(at[6:])
            assert min(at[6:]) >= cache.cells[reach].n
            assert (mask[6:] == 0).any(axis=1).all()
            assert not (mask[:6, min(at[6:]) :] == 0).any()
    assert cache.length(0) == N_TOKENS


def test_a_span_sees_all_of_itself() -> None:
    cache = make(open_reference(), (attention(), attention(window=2)))
    feeds = put(cache, Allocation(0, 0, 6, spans=((2, 5),)))
    for reach in cache.cells:
        mask = feeds[f"cache.mask.{reach}"][:, :6] == 0
        expected = np.tril(np.ones((6, 6), bool))
        if reach.window:
            expected &= ~np.tril(np.ones((6, 6), bool), -2)
        expected[2:5, 2:5] = True
        assert (mask == expected).all()


SIZES = {
    "keys as values": AttentionSpec(2, 32),
    "values of another size": AttentionSpec(3, 64, v_dim=32),
    "values inside keys": AttentionSpec(1, 96, v_in_k=64),
}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q8_0])
def test_rows_come_back(sizes: str, backend: Backend, dtype: DType) -> None:
    """Layers of different sizes share cells."""
    spec = SIZES[sizes]
    cache = make(backend, (AttentionSpec(1, 32), spec), dtype, n_tokens=8)
    rng = np.random.default_rng(0)
    keys, values = [], []
    for position in range(3):
        feeds = put(cache, Allocation(0, position, 1))
        with backend.new_context() as ctx:
            k = ctx.input("k", (1, spec.n_kv_heads, spec.k_dim))
            v = None if spec.v_in_k else ctx.input("v", (1, spec.n_kv_heads, spec.value_dim))
            _, layer = cache.views(ctx, 1, 1, cache.sizes)
            all_k, all_v = (t.cast(DType.F32) for t in layer.update(k, v))
            ctx.forward(all_k, all_v)
            keys.append(rng.standard_normal(k.shape, np.float32))
            values.append(keys[-1][..., : spec.v_in_k] if v is None else rng.standard_normal(v.shape, np.float32))
            given = {k: keys[-1]} | ({} if v is None else {v: values[-1]})
            ctx.compute(given | {ctx.inputs[n]: f for n, f in feeds.items() if n in ctx.inputs})
            read_k, read_v = all_k.read(), all_v.read()
        used = np.flatnonzero(cache.cells[ALL].used)
        least = 0.02 if dtype is DType.Q8_0 else 2e-3
        np.testing.assert_allclose(read_k[used], np.concatenate(keys), atol=least)
        np.testing.assert_allclose(read_v[used], np.concatenate(values), atol=least)


def test_values_inside_keys_are_stored_once() -> None:
    backend = open_reference()
    make(backend, (AttentionSpec(1, 96, v_in_k=64),), n_tokens=8).close()
    inside = make(backend, (AttentionSpec(1, 96, v_in_k=64),), n_tokens=8)
    assert len(inside._made) == 1
    assert make(backend, (AttentionSpec(1, 96),), n_tokens=8)._made[1].shape[1] == 96


def test_a_layer_that_does_not_keep_to_its_spec() -> None:
    backend = open_reference()
    cache = make(backend, (attention(), AttentionSpec(1, 8, v_in_k=4)))
    with backend.new_context() as ctx:
        first, second = cache.views(ctx, 2, 1, cache.sizes)
        k = ctx.input("k", (2, HEADS, DIM))
        with pytest.raises(ShapeError, match=r"layer 0: keys are \(2, 1, 16\); .*cache_spec says \(2, 2, 8\)"):
            first.update(k.reshape(2, 1, 16), k)
        with pytest.raises(GraphError, match=r"layer 1: update got values; .*v_in_k=4"):
            second.update(k, k)
    with backend.new_context() as ctx:
        first, _ = cache.views(ctx, 2, 1, cache.sizes)
        k = ctx.input("k", (2, HEADS, DIM))
        with pytest.raises(GraphError, match="got no values"):
            first.update(k)
        first.update(k, k)
        with pytest.raises(GraphError, match="twice"):
            first.update(k, k)


ROPES = {
    "halves": RoPE(DIM),
    "interleaved": RoPE(DIM, interleaved=True),
    "sections": RoPE(DIM, sections=(2, 1, 1)),
}


@pytest.mark.parametrize("start", [0, 4])
@pytest.mark.parametrize("kind", ROPES)
def test_a_shift_turns_keys_as_their_new_positions_would(backend: Backend, kind: str, start: int) -> None:
    rope = ROPES[kind]
    dim = start + DIM
    spec = attention(k_dim=dim, rope=rope, rope_start=start)
    cache = make(backend, (spec, attention()))  # keys of the second hold no positions: they stay
    rng = np.random.default_rng(0)
    plain = rng.standard_normal((6, HEADS, dim), np.float32)

    def turned(positions: np.ndarray) -> np.ndarray:
        with open_reference().new_context() as ctx:
            positions = np.tile(positions, (len(rope.sections), 1)) if rope.sections else positions
            x, p = ctx.input("x", plain[..., start:].shape), ctx.input("p", positions.shape, DType.I32)
            y = ops.rope(x, p, config=rope)
            read = ctx.forward(y).compute({x: plain[..., start:], p: positions}).read(y)
            return np.concatenate((plain[..., :start], read), axis=-1)

    feeds = put(cache, Allocation(0, 0, 6))
    cells = feeds[f"cache.cells.{ALL}"]
    with backend.new_context() as ctx:
        k, other = ctx.input("k", plain.shape), ctx.input("other", (6, HEADS, DIM))
        first, second = cache.views(ctx, 6, 1, cache.sizes)
        ctx.forward(first.update(k, k)[0].cast(DType.F32), second.update(other, other)[0].cast(DType.F32))
        given = {k: turned(np.arange(6)), other: plain[..., :DIM]}
        ctx.compute(given | {ctx.inputs[n]: f for n, f in feeds.items() if n in ctx.inputs})
    built = backend.counters.compiled
    cache.remove(0, 1, 3)
    cache.shift(0, 3, -2)
    assert backend.counters.compiled == built + 1  # all in one graph
    assert visible(cache, 0, 4, ALL) == {0, 1, 2, 3}
    expected = turned(np.array([0, 0, 0, 1, 2, 3]))
    found = read_keys(backend, cache, 0, dim)
    np.testing.assert_allclose(found[cells[3:]], expected[3:], atol=2e-5)
    np.testing.assert_allclose(found[cells[0]], expected[0], atol=2e-5)
    np.testing.assert_array_equal(read_keys(backend, cache, 1, DIM)[cells], plain[..., :DIM])


def read_keys(backend: Backend, cache: CausalCache, layer: int, dim: int) -> np.ndarray:
    n = cache.cells[ALL].n
    with backend.new_context() as ctx:
        cells = ctx.input("cells", (n,), DType.I32)
        rows = cache._states[Part(layer)][0].take(cells)
        ctx.forward(rows).compute({cells: np.arange(n)})
        return rows.read().reshape(n, HEADS, dim)


def test_impossible_shifts() -> None:
    cache = make(open_reference(), (attention(rope=RoPE(DIM)),))
    put(cache, Allocation(0, 0, 4))
    cache.copy_prefix(0, 1, 4)
    with pytest.raises(GraphError, match="shared"):
        cache.shift(0, 2, -1)
    cache.remove(1)
    with pytest.raises(GraphError, match="negative"):
        cache.shift(0, 2, -3)
    for spec, reason in (
        (attention(shiftable=False), "layer 1 does not allow"),
        (attention(chunk=4), "chunks of 4 positions"),
    ):
        with pytest.raises(GraphError, match=reason):
            make(open_reference(), (attention(), spec)).shift(0, 0, 1)


def test_a_type_whose_blocks_do_not_fit_a_head() -> None:
    with pytest.raises(DTypeError, match="layer 0 has heads of 8 elements"):
        make(open_reference(), dtype=DType.Q8_0)
    with pytest.raises(DTypeError, match="layer 1 has heads of 40 elements"):
        make(open_reference(), (AttentionSpec(1, 32), AttentionSpec(1, 64, v_in_k=40)), dtype=DType.Q8_0)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.Q8_0], ids=lambda t: t.name)
def test_scrubbing_overwrites_free_cells_only(backend: Backend, dtype: DType) -> None:
    spec = (attention(k_dim=32), None, attention(k_dim=32, window=WINDOW))
    cache = make(backend, spec, dtype, n_scratch=2)
    put(cache, Allocation(0, 0, 5), Allocation(1, 0, 1))
    states = [state for pair in cache._states.values() for state in pair if state is not None]
    with backend.new_context() as ctx:
        for state in states:
            rows = ops.arange(state.shape[0])
            ctx.update(state, state.set_rows(rows, ops.full(state.shape, 3)))
        ctx.compute()
    cache.remove(0)
    cache.scrub()
    with backend.new_context() as ctx:
        rows = [state.cast(DType.F32) + 0 for state in states]
        ctx.forward(*rows).compute()
        found = [row.read() for row in rows]
    held = [cache.cells[reach].used for reach in (ALL, ALL, NEAR, NEAR)]
    for row, kept in zip(found, held, strict=True):
        assert kept.sum() == 1
        np.testing.assert_allclose(row, np.where(kept[:, None], 3, 0) * np.ones((1, 64)), rtol=1e-2)


def test_closing_frees_the_memory(backend: Backend) -> None:
    before = backend.memory().total
    cache = make(backend)
    assert backend.memory().total > before
    cache.close()
    assert backend.memory().total == before


WRONG: dict[str, tuple[Any, str]] = {
    "no heads": (lambda: attention(n_kv_heads=0), "n_kv_heads is 0"),
    "a negative window": (lambda: attention(window=-1), "window is -1"),
    "two reaches": (lambda: attention(window=4, chunk=4), "both window"),
    "more value than key": (lambda: attention(v_in_k=9), "v_in_k is 9"),
    "rope beyond the key": (lambda: attention(rope=RoPE(8), rope_start=2), "rotates elements 2 to 10"),
    "both sides of no window": (lambda: attention(both_sides=True), "both_sides is given without a window"),
    "a window of its own over others' keys": (lambda: AttentionSpec(window=4, like=0), "window is given with like=0"),
    "no state": (lambda: RecurrentSpec({}), "no state"),
    "an empty state": (lambda: RecurrentSpec({"x": (0,)}), "'x'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_invalid_specs(wrong: str) -> None:
    make_it, message = WRONG[wrong]
    with pytest.raises(ModelDefinitionError, match=message):
        make_it()


def test_make_cache_refuses_invalid_specs() -> None:
    sizes: Any = {"n_tokens": 8, "n_sequences": 1, "n_ubatch": 4, "dtype": DType.F32}
    with pytest.raises(ModelDefinitionError, match=r"the entry of layer 1\.0 is of type int"):
        make_cache(open_reference(), (attention(), (1, 2)), **sizes)  # type: ignore[arg-type]
    with pytest.raises(ModelDefinitionError, match="no layer keeps anything"):
        make_cache(open_reference(), (None, None), **sizes)
    with pytest.raises(ModelDefinitionError, match="layer 0 attends to later tokens"):
        make_cache(open_reference(), (attention(window=4, both_sides=True),), **sizes)
    state, shared = RecurrentSpec({"x": (2,)}), AttentionSpec(like=1)
    for spec in (
        (attention(), shared, attention()),  # itself
        (attention(), AttentionSpec(like=2), attention()),  # a later layer
        (attention(), state, shared),  # no keys
        (attention(), (attention(), attention()), shared),  # two sets of keys
        (attention(), AttentionSpec(like=0), shared),  # a layer that stores none of its own
        (attention(), AttentionSpec(like=-1)),
    ):
        with pytest.raises(ModelDefinitionError, match="expected an earlier layer that stores one set of them"):
            make_cache(open_reference(), spec, **sizes)


moves = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), min_size=1, max_size=3)),
    st.tuples(st.just("span"), st.integers(0, 3), st.integers(2, 4)),
    st.tuples(st.just("fail"), st.integers(0, 3), st.integers(1, 3)),
    st.tuples(st.just("share"), st.integers(0, 3), st.integers(0, 3), st.integers(1, 9)),
    st.tuples(st.just("cut"), st.integers(0, 3), st.integers(0, 9)),
    st.tuples(st.just("shift"), st.integers(0, 3), st.integers(1, 4)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(moves, max_size=24))
@example([("put", [(0, 3)]), ("span", 0, 3), ("put", [(0, 1)])])
@example([("put", [(0, 3)]), ("put", [(0, 1)]), ("fail", 0, 2), ("put", [(0, 1)])])
@example([("put", [(0, 3), (1, 1)]), ("share", 0, 1, 2), ("put", [(1, 1), (0, 1)]), ("shift", 0, 2), ("put", [(0, 2)])])
@pytest.mark.parametrize("lists", [False, True])
def test_what_is_kept_and_continued_is_what_is_made_from_all_cells(lists: bool, steps: list[tuple[Any, ...]]) -> None:
    with open_reference() as backend:
        layers = attention(rope=RoPE(dim=DIM)), attention(window=WINDOW)
        sizes = {"n_tokens": 40, "n_ubatch": 9}
        cache = with_lists(layers, **sizes) if lists else make(backend, layers, **sizes)
        for kind, *values in steps:
            if kind == "share":
                source, target, n = values
                if source != target:
                    cache.copy_prefix(source, target, n)
            elif kind == "cut":
                cache.remove(values[0], values[1])
            elif kind == "shift":
                slot, start = values
                by = max(1, start // 2)
                if not cache.slots_sharing(slot, start) and cache.length(slot) > start:
                    cache.remove(slot, start - by, start)
                    cache.shift(slot, start, -by)
            else:
                parts = values[0] if kind == "put" else [tuple(values)]
                chosen = dict(parts)
                allocations = [
                    Allocation(s, (first := cache.length(s)), n, ((first, first + n),) if kind == "span" else ())
                    for s, n in chosen.items()
                ]
                n_rows = sum(chosen.values()) + 1
                try:
                    feeds = cache.allocate(allocations, n_rows)
                except CacheFullError:
                    continue
                positions = np.array([a.start + i for a in allocations for i in range(a.n)], np.int32)
                slots = np.array([a.slot for a in allocations for _ in range(a.n)])
                spans = None
                if kind == "span":
                    spans = np.full(len(slots), positions[0]), np.full(len(slots), positions[-1])
                for reach, cells in cache.cells.items():
                    visible = cells.mask(positions, slots, spans)
                    mask = feeds[f"cache.mask.{reach}"]
                    assert mask.shape == (n_rows, cells.n_rows if lists else cells.n_read)
                    seen = np.where(visible, np.float32(0), np.float32(-np.inf))
                    assert np.array_equal(mask[:-1, : cells.n_read], seen)
                    for row, read in zip(visible, listed(cache, feeds, reach) if lists else ()):
                        assert read == sorted(cells.positions[: len(row)][row].tolist())
                    assert int(cells.members.nonzero()[0].max()) < cells.n_read
                cache.rollback() if kind == "fail" else cache.commit()
