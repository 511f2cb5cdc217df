"""Where the cells of texts are: those of one text lie together, however many grow at once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotshoe.kvcache import AttentionSpec, CausalCache
from hotshoe.kvcache import cells as cells_module
from hotshoe.kvcache.cells import Cells, Reach
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import CacheFullError

BLOCK = 4


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cells_module, "_CELLS_OF_TEXT", BLOCK)
        yield


def put(cells: Cells, *rows: tuple[int, int]) -> list[int]:
    """Add rows to slots, (slot, number) each. Return their cells."""
    slots = np.repeat([slot for slot, _ in rows], [n for _, n in rows])
    positions = np.concatenate([cells.length(slot) + np.arange(n) for slot, n in rows])
    taken = cells.allocate(positions, slots, len(slots))
    cells.commit()
    return [int(cell) for cell in taken]


def of(cells: Cells, slot: int) -> list[int]:
    """The cells of a slot in the order of its text."""
    return [int(cell) for cell in cells.found(slot, 0, 1000)]


def test_texts_that_grow_at_once_have_blocks_of_their_own() -> None:
    cells = Cells(64, Reach())
    put(cells, (0, 5), (1, 2), (2, 7))
    for _ in range(6):
        put(cells, (0, 1), (1, 1), (2, 1))
    found = [of(cells, slot) for slot in range(3)]
    for mine in found:
        assert all(b == a + 1 or (a % BLOCK == BLOCK - 1 and b % BLOCK == 0) for a, b in pairwise(mine))
    blocks = [{cell // BLOCK for cell in mine} for mine in found]
    assert sum(map(len, blocks)) == len(set.union(*blocks))


def test_one_text_fills_the_cache_in_order() -> None:
    cells = Cells(18, Reach())
    put(cells, (0, 7))
    for _ in range(11):
        put(cells, (0, 1))
    assert of(cells, 0) == list(range(18))


def test_the_last_cells_are_taken_too() -> None:
    cells = Cells(10, Reach())
    put(cells, (0, 1), (1, 1))  # the blocks at 0 and 4
    assert sorted(put(cells, (2, 8))) == [1, 2, 3, 5, 6, 7, 8, 9]
    with pytest.raises(CacheFullError, match=r"has room for 0 more tokens; 1 are"):
        put(cells, (0, 1))
    cells.rollback()
    cells.remove(1, 0, None)
    assert put(cells, (0, 1)) == [4]


def test_two_forks_go_on_in_cells_of_their_own() -> None:
    cells = Cells(32, Reach())
    put(cells, (0, 6))
    cells.share(0, 1, 6)
    assert put(cells, (0, 1), (1, 1)) == [6, 8]
    assert put(cells, (1, 1), (0, 1)) == [9, 7]


def test_a_text_goes_on_where_it_was_cut() -> None:
    cells = Cells(32, Reach())
    put(cells, (0, 6))
    cells.remove(0, 5, None)
    assert put(cells, (0, 2)) == [5, 6]


def test_cells_that_were_given_back_are_taken_again() -> None:
    cells = Cells(32, Reach())
    put(cells, (0, 2))
    cells.allocate(np.array([2]), np.array([0]), 1)
    cells.rollback()
    assert put(cells, (0, 1)) == [2]


moves = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), min_size=1, max_size=4)),
    st.tuples(st.just("cut"), st.integers(0, 3), st.integers(0, 12)),
    st.tuples(st.just("share"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 12)),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(moves, max_size=20), st.integers(1, 45))
def test_every_free_cell_is_found_once(steps: Sequence[tuple[Any, ...]], n: int) -> None:
    cells = Cells(n, Reach())
    for kind, *values in steps:
        if kind == "cut":
            cells.remove(values[0], values[1], None)
        elif kind == "share" and values[0] != values[1]:
            cells.remove(values[1], 0, None)
            cells.share(*values)
        elif kind == "put":
            rows = list(dict(values[0]).items())
            before, wanted = cells.used.copy(), sum(count for _, count in rows)
            assert cells.room() == n - np.count_nonzero(before)
            if wanted > cells.room():
                with pytest.raises(CacheFullError):
                    put(cells, *rows)
                assert (cells.used == before).all()
                continue
            taken = put(cells, *rows)
            assert len(set(taken)) == wanted
            assert not before[taken].any()
            assert cells.used[taken].all()


def test_a_cache_that_is_only_planned_allocates_nothing() -> None:
    """However many cells it would have."""
    with open_reference(BackendParams(allocate=False)) as backend:
        tracemalloc.start()
        cache = CausalCache(backend, [AttentionSpec(2, 8)], n_tokens=1 << 20, n_sequences=63)
        assert max(cache.max_sizes) == 63 << 20
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 1 << 20
