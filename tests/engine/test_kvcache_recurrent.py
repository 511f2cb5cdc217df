"""Recurrent, hybrid and cross-attention caches: a state is always the sum of all tokens before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.kvcache import (
    Allocation,
    AttentionSpec,
    CausalCache,
    CrossCache,
    CrossSpec,
    HybridCache,
    RecurrentCache,
    RecurrentSpec,
    make_cache,
)
from hotshoe.kvcache.recurrent_rows import Rows
from hotshoe_core import Backend, DType
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import CacheFullError, GraphError, ShapeError
from hotshoe_loader import load_all

SPEC = RecurrentSpec({"sum": (2, 3), "last": (4,)})


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param not in [d.name for d in load_all().devices]:
        pytest.skip("no device 'cpu': hotshoe-ggml-cpu is not installed")
    with load_all().open(request.param) as opened:
        yield opened


def with_rows(backend: Backend, n: int) -> RecurrentCache:
    """Make a cache of exactly ``n`` states; states this small would get more by default."""
    cache = RecurrentCache(backend, (RecurrentSpec({"sum": (2, 3)}),), n_sequences=1)
    assert cache.rows.n >= n
    cache.rows = Rows(n, first=1)
    return cache


def feed(cache: RecurrentCache, allocations: list[Allocation], tokens: list[list[float]]) -> np.ndarray:
    """Compute a graph: the state of each sequence becomes the sum of its tokens. Return the states before it."""
    backend, n = cache._backend, allocations[0].n
    feeds = cache.allocate(allocations, n * len(allocations))
    with backend.new_context() as ctx:
        x = ctx.input("x", (n * len(allocations), 2, 3))
        (view,) = cache.views(ctx, n * len(allocations), len(allocations), cache.sizes)
        before = view.read("sum")
        view.write("sum", before + view.split(x).permute(0, 2, 3, 1).sum(-1).reshape(len(allocations), 2, 3))
        ctx.forward(before)
        value = np.repeat(np.concatenate(tokens).astype(np.float32), 6).reshape(-1, 2, 3)
        ctx.compute({x: value} | {ctx.inputs[name]: f for name, f in feeds.items()})
        return before.read()


def test_roll_keeps_the_last_steps(backend: Backend) -> None:
    cache = RecurrentCache(backend, (RecurrentSpec({"conv": (3, 1)}),), n_sequences=1)
    steps = np.arange(1, 8, dtype=np.float32)
    before = []
    for start, n in ((0, 2), (2, 4), (6, 1)):
        feeds = cache.allocate([Allocation(0, start, n)], n)
        with backend.new_context() as ctx:
            (view,) = cache.views(ctx, n, 1, cache.sizes)
            x = ctx.input("x", (n, 1))
            read = view.roll("conv", view.split(x))
            ctx.forward(read)
            value = steps[start : start + n, None]
            ctx.compute({x: value} | {ctx.inputs[name]: f for name, f in feeds.items()})
            before.append(read.read().reshape(-1).tolist())
        cache.commit()
    assert before == [[0, 0, 0], [0, 1, 2], [4, 5, 6]]


operations = st.one_of(
    st.tuples(st.just("feed"), st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True), st.integers(1, 3)),
    st.tuples(
        st.sampled_from(["failed", "withdrawn"]),
        st.lists(st.integers(0, 4), min_size=1, max_size=2, unique=True),
        st.integers(1, 2),
    ),
    st.tuples(st.just("fork"), st.just([0]), st.tuples(st.integers(0, 4), st.integers(0, 4))),
    st.tuples(st.just("remove"), st.lists(st.integers(0, 4), min_size=1, max_size=1), st.integers(0, 8)),
)


@given(st.lists(operations, max_size=30), st.sampled_from([4, 8]))
@settings(max_examples=40, deadline=None)
def test_a_state_is_the_sum_of_all_tokens_before(steps: list[Any], n_rows: int) -> None:
    cache = with_rows(open_reference(), n_rows)
    texts: dict[int, list[float]] = {s: [] for s in range(5)}
    draw = np.random.default_rng(0)

    def resume() -> None:
        """Cut each text to the length at which the cache can resume it."""
        for s, text in texts.items():
            del text[cache.resume_position(s, len(text)) :]
            cache.remove(s, len(text))

    for name, sequences, argument in steps:
        if name in ("feed", "failed", "withdrawn"):
            allocations = [Allocation(s, len(texts[s]), argument) for s in sequences]
            new = [draw.integers(1, 1000, argument).tolist() for _ in sequences]
            if not cache.fits(allocations):
                with pytest.raises(CacheFullError):
                    cache.allocate(allocations, argument * len(allocations))
                cache.rollback()
                continue
            if name == "withdrawn":  # the graph is not computed, and no state of its texts is lost
                cache.allocate(allocations, argument * len(allocations))
                cache.rollback()
                assert all(cache.can_resume(s, len(texts[s])) for s in sequences)
                resume()
                continue
            read = feed(cache, allocations, new)
            cache.commit()
            for s, state in zip(sequences, read, strict=True):
                assert (state == sum(texts[s])).all()
            for s, tokens in zip(sequences, new, strict=True):
                if name == "feed":
                    texts[s] += tokens
                else:
                    cache.remove(s, len(texts[s]))
        elif name == "fork":
            source, target = argument
            if source != target:
                cache.copy_prefix(source, target, len(texts[source]))
                texts[target] = list(texts[source])
        else:
            (s,) = sequences
            n = min(argument, len(texts[s]))
            cache.remove(s, n)
            del texts[s][n:]
        resume()
        for s, text in texts.items():
            assert cache.length(s) == len(text)
            assert cache.can_resume(s, len(text))
            assert cache.can_resume(s, 0)


def test_a_chunk_leaves_a_checkpoint_and_a_token_none(backend: Backend) -> None:
    cache = with_rows(backend, 8)
    for start, n in ((0, 3), (3, 2), (5, 1), (6, 1)):
        feed(cache, [Allocation(0, start, n)], [[1.0] * n])
        cache.commit()
    assert [p for p in range(9) if cache.can_resume(0, p)] == [0, 3, 7]
    assert [cache.resume_position(0, p) for p in (2, 6, 7, 9)] == [0, 3, 7, 7]
    cache.remove(0, 4)
    assert (feed(cache, [Allocation(0, 3, 1)], [[5.0]]) == 3).all()
    cache.commit()


def test_a_fork_shares_until_one_of_them_writes(backend: Backend) -> None:
    cache = with_rows(backend, 8)
    feed(cache, [Allocation(0, 0, 2)], [[1.0, 2.0]])
    cache.commit()
    cache.copy_prefix(0, 1, 2)
    assert sum(bool(r.members) for r in cache.rows._rows) == 1
    assert cache.slots_sharing(0, 1) == {1}
    assert (feed(cache, [Allocation(0, 2, 1)], [[10.0]]) == 3).all()
    cache.commit()
    assert (
        feed(cache, [Allocation(1, 2, 1), Allocation(0, 3, 1)], [[20.0], [30.0]]) == np.array([3, 13])[:, None, None]
    ).all()
    cache.commit()
    read = feed(cache, [Allocation(1, 3, 1), Allocation(0, 4, 1)], [[0.0], [0.0]])
    assert (read == np.array([23, 43])[:, None, None]).all()


def test_checkpoints_that_save_little_for_their_age_go_first() -> None:
    cache = with_rows(open_reference(), 4)
    for start in range(0, 12, 2):
        feed(cache, [Allocation(0, start, 2)], [[1.0, 1.0]])
        cache.commit()
    assert [p for p in range(1, 13) if cache.can_resume(0, p)] == [4, 8, 10, 12]  # the older, the sparser


def write(rows: Rows, *allocations: Allocation) -> None:
    rows.allocate(allocations)
    rows.commit()


def test_states_after_guesses_go_before_checkpoints() -> None:
    """And a wrong guess goes back to the state before it, however few rows there are."""
    rows = Rows(6, first=1)
    write(rows, Allocation(0, 0, 300), Allocation(1, 0, 300))
    write(rows, Allocation(0, 300, 40), Allocation(1, 300, 40))  # the ends of two prompts
    for i in range(100):
        ends = rows.length(0), rows.length(1)
        write(rows, *(Allocation(slot, end, 8, passing=True, guessed=True) for slot, end in enumerate(ends)))
        for slot, end in enumerate(ends):
            assert rows.resume_position(slot, end + 3) == end
            if (i + slot) % 3 == 0:
                rows.remove(slot, end)
    for slot in range(2):
        assert rows.length(slot) > 700
        assert rows.resume_position(slot, 339) == 300


def test_a_state_on_the_grid_is_kept_after_guesses_too() -> None:
    rows = Rows(4, first=1)
    write(rows, Allocation(0, 0, 250))
    write(rows, Allocation(0, 250, 6, passing=True))
    for _ in range(50):
        write(rows, Allocation(0, rows.length(0), 4, passing=True))
    assert rows.resume_position(0, 300) == 256


def test_more_sequences_than_states() -> None:
    cache = with_rows(open_reference(), 4)
    for s in range(4):
        feed(cache, [Allocation(s, 0, 1)], [[1.0]])
        cache.commit()
    with pytest.raises(CacheFullError, match="4 states"):
        cache.allocate([Allocation(4, 0, 1)], 1)
    cache.rollback()
    assert cache.fits([Allocation(4, 0, 1)], keep={0, 1, 2})
    assert all(cache.length(s) == 1 for s in range(4))
    cache.remove(3)
    feed(cache, [Allocation(4, 0, 1)], [[1.0]])


def test_small_states_have_room_for_many_sequences() -> None:
    assert RecurrentCache(open_reference(), (SPEC,)).rows.n >= 63
    large = RecurrentSpec({"x": (1 << 22,)})  # 16 MiB a sequence
    params = dataclasses.replace(open_reference().params, allocate=False)
    assert RecurrentCache(open_reference(params), (large,), n_sequences=2).rows.n == 8


def test_wrong_steps_and_states() -> None:
    backend = open_reference()
    cache = RecurrentCache(backend, (SPEC, None))
    with pytest.raises(GraphError, match="equal lengths"):
        cache.allocate([Allocation(0, 0, 2), Allocation(1, 0, 1)], 3)
    with pytest.raises(GraphError, match="recurrent state"):
        cache.shift(0, 1, -1)
    with backend.new_context() as ctx:
        view, none = cache.views(ctx, 6, 2, cache.sizes)
        assert none is None
        assert view.read("sum").shape == (2, 2, 3)
        x = ctx.input("x", (6, 5))
        assert view.merge(view.split(x)).shape == (6, 5)
        with pytest.raises(GraphError, match="did you mean 'sum'"):
            view.read("sums")
        with pytest.raises(ShapeError, match=r"'last' is \(2, 2, 3\); expected \(2, 4\)"):
            view.write("last", view.read("sum"))
        view.write("last", view.read("last"))
        with pytest.raises(GraphError, match="layer 0 never writes its state 'sum'"):
            view.require_written()
        with pytest.raises(GraphError, match="twice"):
            view.write("last", view.read("last"))


# Layers of several kinds


def test_a_hybrid_asks_all_its_caches() -> None:
    backend = open_reference()
    spec = (SPEC, AttentionSpec(1, 4), None, AttentionSpec(1, 4, window=4))
    cache = make_cache(backend, spec, n_tokens=32, n_sequences=1, n_ubatch=8, dtype=DType.F32)
    assert isinstance(cache, HybridCache)
    assert cache.uniform
    assert cache.shift_refusal is not None
    for start, n in ((0, 6), (6, 4), (10, 4), (14, 1)):
        cache.allocate([Allocation(0, start, n)], n)
        cache.commit()
    # the state at 6 was kept, too, but a window of 4 has passed
    assert [p for p in range(1, 16) if cache.can_resume(0, p)] == [10, 15]
    assert [cache.resume_position(0, p) for p in (9, 14, 15)] == [0, 10, 15]
    cache.copy_prefix(0, 1, 15)
    assert cache.slots_sharing(0, 10) == {1}
    with backend.new_context() as ctx:
        views = cache.views(ctx, 2, 2, cache.sizes)
        assert [type(v).__name__ for v in views] == ["StateView", "KeyValueView", "NoneType", "KeyValueView"]
    with pytest.raises(CacheFullError):
        cache.allocate([Allocation(2, 0, 33)], 33)
    cache.rollback()
    cache.remove(0)
    cache.remove(1)
    assert cache.length(0) == 0
    with pytest.raises(GraphError, match="recurrent state"):
        cache.shift(0, 0, 1)


def test_kinds_of_caches() -> None:
    sizes: Any = {"n_tokens": 8, "n_sequences": 1, "n_ubatch": 4, "dtype": DType.F32}
    assert isinstance(make_cache(open_reference(), (None, AttentionSpec(1, 4)), **sizes), CausalCache)
    assert isinstance(make_cache(open_reference(), (None, SPEC), **sizes), RecurrentCache)
    assert isinstance(make_cache(open_reference(), (CrossSpec(1, 4, 4),), n_encoded=3, **sizes), CrossCache)
    both = make_cache(open_reference(), (AttentionSpec(1, 4), CrossSpec(1, 4, 4)), **sizes)
    assert isinstance(both, CausalCache)  # without an encoder, nothing is kept for it
