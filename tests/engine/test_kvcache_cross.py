"""The cache of encoders' outputs: which row attends to which output, sharing, room, and what is computed again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.kvcache import (
    Allocation,
    AttentionSpec,
    CrossCache,
    CrossSpec,
    HybridCache,
    make_cache,
    most_attended,
    part_of,
)
from hotshoe_core import Backend, DType
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import CacheFullError, DTypeError, GraphError

SPEC = CrossSpec(2, 4, 8)


def _cache(n_rows: int) -> CrossCache:
    return CrossCache(open_reference(), (None, SPEC), n_rows=n_rows, dtype=DType.F32)


def _put(cache: CrossCache, *allocations: Allocation, n_rows: int = 0) -> dict[str, Any]:
    """Allocate rows and store their outputs. Keys of row i: slot * 1000 + position * 10 + i; values: minus that."""
    backend: Backend = cache._backend
    feeds = cache.allocate(allocations, n_rows or sum(a.n for a in allocations))
    if "cross.cells" in feeds:
        n = len(feeds["cross.cells"])
        with backend.new_context() as ctx:
            k, v = ctx.input("k", (n, 2, 4)), ctx.input("v", (n, 2, 8))
            view = cache.storing_views(ctx, n)[1]
            view.put(k, v)  # type: ignore[union-attr]
            names = [a.slot * 1000 + p * 10 + i for a in allocations for p, m in a.encoded for i in range(m)]
            values = np.array(names, np.float32)[:, None, None]
            ctx.compute(
                {k: np.broadcast_to(values, (n, 2, 4)), v: np.broadcast_to(-values, (n, 2, 8))}
                | {ctx.inputs["cross.cells"]: feeds["cross.cells"]}
            )
    cache.commit()
    return feeds


def _seen(cache: CrossCache, feeds: dict[str, Any]) -> list[list[int]]:
    """What each row attends to, by the names that ``_put`` gave to the outputs' rows."""
    (size,) = cache.sizes
    if not size:
        return []
    n = len(feeds["cross.mask"])
    with cache._backend.new_context() as ctx:
        view: Any = cache.views(ctx, n, 1, (size,))[1]
        keys, values = view.read()
        ctx.forward(keys * 1.0, values * 1.0, view.mask * 1.0, view.attends * 1.0)
        ctx.compute({ctx.inputs[name]: feeds[name] for name in ctx.inputs})
        k, v, mask, attends = (t.read() for t in ctx.graph().outputs)
    np.testing.assert_array_equal(k[..., 0], -v[..., 0])
    assert (np.isfinite(mask).any(axis=1)).all()  # a softmax of nothing is NaN
    return [sorted(k[mask[i] == 0, 0, 0].astype(int).tolist()) if attends[i] else [] for i in range(n)]


def test_a_row_attends_to_the_last_output_and_those_directly_before_it() -> None:
    cache = _cache(40)
    feeds = _put(cache, Allocation(0, 0, 8, (), ((2, 3), (5, 2), (6, 1))), Allocation(1, 0, 2), n_rows=11)
    first, second = [20, 21, 22], [50, 51]
    assert _seen(cache, feeds) == [[], [], first, first, first, second, [*second, 60], [*second, 60], [], [], []]
    feeds = _put(cache, Allocation(1, 2, 1), Allocation(0, 8, 1))
    assert _seen(cache, feeds) == [[], [*second, 60]]
    feeds = _put(cache, Allocation(1, 3, 2))
    assert cache.sizes == (0,)
    assert cache.views(cache._backend.new_context(), 2, 1, (0,)) == [None, None]


def test_forks_share_and_end_apart() -> None:
    cache = _cache(6)
    _put(cache, Allocation(0, 0, 4, (), ((1, 3),)))
    cache.copy_prefix(0, 1, 4)
    cache.copy_prefix(0, 2, 1)  # ends before the output
    feeds = _put(cache, Allocation(1, 4, 1), Allocation(2, 1, 1, (), ((1, 3),)))
    assert _seen(cache, feeds) == [[10, 11, 12], [2010, 2011, 2012]]
    assert not cache.fits([Allocation(3, 0, 2, (), ((0, 1),))])
    with pytest.raises(CacheFullError, match="0 are free; 1 are needed"):
        cache.allocate([Allocation(3, 0, 2, (), ((0, 1),))], 2)
    cache.remove(0)
    assert _seen(cache, _put(cache, Allocation(1, 5, 1))) == [[10, 11, 12]]
    cache.remove(1, 1)
    assert _seen(cache, _put(cache, Allocation(3, 0, 2, (), ((0, 3),)))) == [[3000, 3001, 3002]] * 2
    assert _put(cache, Allocation(1, 1, 1)) == {}


def test_what_no_row_will_read_makes_room_and_is_computed_again_when_a_text_is_cut() -> None:
    cache = _cache(5)
    _put(cache, Allocation(0, 0, 4, (), ((1, 3),)))
    assert cache.fits([Allocation(0, 4, 3, (), ((5, 2),))])
    _put(cache, Allocation(0, 4, 3, (), ((5, 2),)))
    feeds = _put(cache, Allocation(0, 7, 3, (), ((8, 3),)))
    assert _seen(cache, feeds) == [[50, 51], [80, 81, 82], [80, 81, 82]]
    assert [cache.resume_position(0, p) for p in (10, 8, 7, 5, 4, 2, 1)] == [10, 8, 7, 1, 1, 1, 1]
    assert cache.can_resume(0, 7)
    assert not cache.can_resume(0, 4)
    cache.remove(0, 1)
    assert _seen(cache, _put(cache, Allocation(0, 1, 2, (), ((1, 3),)))) == [[10, 11, 12]] * 2
    # a graph that begins with an output needs none before it, unless they follow each other
    feeds = _put(cache, Allocation(0, 3, 2, (), ((3, 5),)))
    assert _seen(cache, feeds) == [[30, 31, 32, 33, 34]] * 2
    assert not cache.fits([Allocation(0, 5, 2, (), ((6, 1),))])
    assert cache.fits([Allocation(0, 5, 2, (), ((5, 1),))])
    cache.remove(0, 4)
    assert not cache.fits([Allocation(0, 4, 2, (), ((4, 1),))])


def test_room_for_the_outputs_of_a_long_text_that_are_stored_one_by_one() -> None:
    assert (most_attended([]), most_attended([(2, 3), (4, 1)]), most_attended([(0, 1), (1, 3), (5, 2)])) == (0, 3, 4)
    cache = _cache(6)
    _put(cache, Allocation(0, 0, 2, (), ((0, 3),)))
    many = Allocation(1, 0, 9, (), ((0, 2), (2, 3), (4, 2), (7, 3)))
    assert cache.fits([many, Allocation(0, 2, 1)])
    assert not cache.fits([many._replace(encoded=((0, 2), (1, 2)))])  # a row attends to both
    bounds = [0, 2, 4, 7, 9]
    for k, output in enumerate(many.encoded):
        piece = Allocation(1, bounds[k], bounds[k + 1] - bounds[k], (), (output,))
        assert cache.fits([piece])
        assert _seen(cache, _put(cache, piece, Allocation(0, 2 + k, 1)))[-1] == [0, 1, 2]


def test_an_output_that_was_not_computed_is_forgotten() -> None:
    cache = _cache(4)
    cache.allocate([Allocation(0, 0, 2, (), ((0, 3),))], 2)
    cache.rollback()
    assert cache.fits([Allocation(1, 0, 1, (), ((0, 4),))])
    assert _put(cache, Allocation(0, 0, 1)) == {}


def test_save_and_restore() -> None:
    cache = _cache(6)
    _put(cache, Allocation(0, 0, 6, (), ((1, 3), (4, 2))))
    saved = cache.save(0, 0, 6)
    assert cache.held_bytes(0, 0, 6) == 5 * 2 * (4 + 8) * 4
    assert sum(array.nbytes for array in saved.values()) == cache.held_bytes(0, 0, 6) + saved["cross.outputs"].nbytes
    cache.remove(0)
    _put(cache, Allocation(3, 0, 1, (), ((0, 1),)))
    cache.restore(2, saved, 6)
    assert _seen(cache, _put(cache, Allocation(2, 6, 1))) == [[40, 41]]
    assert cache.resume_position(2, 3) == 3
    cache.remove(2, 4)
    assert _seen(cache, _put(cache, Allocation(2, 4, 1))) == [[10, 11, 12]]
    cache.restore(4, saved, 3)  # no room: the output is missing, so that its rows are computed again
    assert cache.resume_position(4, 3) == 1


def test_positions_move() -> None:
    cache = _cache(6)
    _put(cache, Allocation(0, 0, 8, (), ((2, 2), (6, 2))))
    cache.remove(0, 3, 6)
    cache.shift(0, 6, -3)
    assert _seen(cache, _put(cache, Allocation(0, 5, 1))) == [[20, 21, 60, 61]]  # now they follow each other
    assert cache.slots_sharing(0, 0) == frozenset()
    cache = _cache(4)
    _put(cache, Allocation(0, 0, 4, (), ((1, 2),)))
    _put(cache, Allocation(0, 4, 4, (), ((4, 2),)))
    _put(cache, Allocation(0, 8, 2, (), ((8, 2),)))  # the first one made room
    cache.remove(0, 2, 8)
    cache.shift(0, 8, -6)
    assert cache.resume_position(0, 4) == 1


def test_errors_and_parts() -> None:
    cache = _cache(4)
    with cache._backend.new_context() as ctx:
        storing: Any = cache.storing_views(ctx, 2)[1]
        reading: Any = cache.views(ctx, 2, 1, (4,))[1]
        rows = ctx.input("rows", (2, 2, 4))
        for call in (storing.read, lambda: storing.mask, lambda: storing.attends, lambda: reading.put(rows, rows)):
            with pytest.raises(GraphError):
                call()
    with pytest.raises(DTypeError, match="use f16"):
        CrossCache(open_reference(), (SPEC,), n_rows=2, dtype=DType.Q8_0)
    sizes: Any = {"n_tokens": 8, "n_sequences": 1, "n_ubatch": 4, "dtype": DType.F32, "n_encoded": 2}
    both = make_cache(open_reference(), (AttentionSpec(1, 4), SPEC), **sizes)
    assert isinstance(both, HybridCache)
    assert part_of(both, CrossCache) is both.caches[1]
    assert part_of(both.caches[0], CrossCache) is None
    cache.scrub()
    cache.close()


TEXTS = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=40)


@given(TEXTS, st.integers(3, 6))
@settings(max_examples=60, deadline=None)
def test_any_order_of_rows_and_slots(rows: list[tuple[int, bool]], n_rows: int) -> None:
    """Rows of three slots come one by one; each attends to what a list of all outputs says."""
    cache = _cache(n_rows)
    texts: dict[int, list[bool]] = {0: [], 1: [], 2: []}
    for slot, is_output in rows:
        position = len(texts[slot])
        encoded = ((position, 2),) if is_output else ()
        allocation = Allocation(slot, position, 1, (), encoded)
        try:
            feeds = _put(cache, allocation)
        except CacheFullError:
            assert not cache.fits([allocation])
            cache.rollback()
            for other in texts:  # what a runner evicts
                cache.remove(other)
                texts[other] = []
            continue
        texts[slot].append(is_output)
        places = [p for p, output in enumerate(texts[slot]) if output]
        last = places[-1] if places else -1
        while last > 0 and texts[slot][last - 1]:
            last -= 1
        expected = [slot * 1000 + p * 10 + i for p in places if p >= last for i in range(2)]
        assert _seen(cache, feeds) == ([[*expected]] if expected else [])
