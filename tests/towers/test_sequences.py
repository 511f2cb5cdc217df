"""Texts with pictures in any order, forked, cut, shifted and continued: always what computing from nothing gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotshoe
from hotshoe.runner.items import EmbeddingSpan, Item
from hotshoe.runner.text import TextModel
from hotshoe_core.errors import GraphError, SamplingError
from tests.towers.made import MadeTower
from tests.towers.row import picture
from tests.towers.rows import ROWS

# rows with positions of their own, bidirectional ones, and ones that layers attend to; the texts that a cache has room
# for, in the small one and in the other: all pictures of a prompt may follow each other
NAMES = {"qwen2-vl": (4, 1), "gemma3": (4, 1), "mllama": (12, 40)}
BOUND = 1e-4  # sums of other lengths round differently

Pair = tuple[TextModel, TextModel]


@pytest.fixture(scope="module", params=list(NAMES))
def tower(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeTower]:
    made = MadeTower(request.param, ROWS[request.param], tmp_path_factory.mktemp("sequences"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def pair(tower: MadeTower, main_device: str) -> Iterator[Pair]:
    """A model with a small cache and small graphs, and one that computes each prompt from nothing, in one graph."""
    options: Any = {"task": "text", "kv_dtype": "f32", "projector": tower.file()}
    small_n, whole_n = NAMES[tower.name]
    with (
        hotshoe.load_model(
            tower.path, main_device, n_ctx=160, n_batch=24, n_ubatch=16, n_sequences=small_n, **options
        ) as small,
        hotshoe.load_model(tower.path, main_device, n_ctx=160, n_sequences=whole_n, **options) as whole,
    ):
        yield small, whole


def _spans(model: TextModel, size: tuple[int, int]) -> list[EmbeddingSpan]:
    items = model.images.items("", [picture(*size)], add_special=False)  # type: ignore[union-attr]
    return [item for item in items if isinstance(item, EmbeddingSpan)]


PIECES = st.lists(
    st.one_of(
        st.lists(st.integers(3, 250), min_size=1, max_size=9),
        st.sampled_from([(56, 112), (112, 112), (84, 84)]),  # sizes of pictures
    ),
    min_size=1,
    max_size=4,
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5), PIECES),
        st.tuples(st.just("fork"), st.integers(0, 5), st.none()),
        st.tuples(st.just("truncate"), st.integers(0, 5), st.floats(0, 1)),
        st.tuples(st.just("shift"), st.integers(0, 5), st.tuples(st.floats(0, 1), st.floats(0, 1))),
        st.tuples(st.just("again"), st.integers(0, 5), st.none()),
    ),
    min_size=2,
    max_size=9,
)


def _items(model: TextModel, pieces: list[Any]) -> list[Item]:
    return [i for piece in pieces for i in (_spans(model, piece) if isinstance(piece, tuple) else piece)]


def _first(items: list[Item], n: int) -> list[Item] | None:
    """The items of the first ``n`` rows; None if row ``n`` is inside a span."""
    kept: list[Item] = []
    for item in items:
        size = len(item) if isinstance(item, EmbeddingSpan) else 1
        if size > n:
            return kept if n == 0 else None
        kept.append(item)
        n -= size
    return kept


def _n_rows(items: list[Item]) -> int:
    return sum(len(item) if isinstance(item, EmbeddingSpan) else 1 for item in items)


@given(ACTIONS)
@settings(max_examples=25, deadline=None)
def test_sequences_are_those_computed_from_nothing(pair: Pair, actions: list[Any]) -> None:
    model, whole = pair
    known: list[tuple[Any, list[Item]]] = [(model.sequence(), [])]
    try:
        for action, number, value in actions:
            sequence, items = known[number % len(known)]
            if action == "append":
                new = _items(model, value)
                if _n_rows(items + new) > 100:
                    continue
                items += new
                _check(whole, items, sequence.append(*new))
            elif action == "fork" and len(known) < 3:
                known.append((sequence.fork(), list(items)))
            elif action == "truncate":
                n = int(value * _n_rows(items))
                kept = _first(items, n)
                if kept is None:
                    with pytest.raises(GraphError, match="middle of a span"):
                        sequence.truncate(n)
                else:
                    sequence.truncate(n)
                    items[:] = kept
            elif action == "shift":
                _shift(sequence, items, *value)
            elif action == "again" and items:
                with model.sequence(items) as other:  # its beginning may be in the cache
                    _check(whole, items, other.append())
            assert len(sequence) == _n_rows(items)
    finally:
        for sequence, _ in known:
            sequence.close()


def _shift(sequence: Any, items: list[Item], start: float, stop: float) -> None:
    """Remove the last rows of a sequence by a shift, after which nothing is rotated: or see it refused."""
    first = int(min(start, stop) * _n_rows(items))
    kept, n = _first(items, first), _n_rows(items) - first
    own = any(isinstance(item, EmbeddingSpan) and item.positions is not None for item in items)
    if own or kept is None:
        with pytest.raises(GraphError, match="positions of its own" if own else "middle of a span"):
            sequence.shift(first, n)
    else:
        sequence.shift(first, n)
        items[:] = kept


def _check(whole: TextModel, items: list[Item], logits: np.ndarray[Any, Any]) -> None:
    whole.forget()
    expected = whole.logits(items)[-1]
    assert np.abs(logits - expected).max() <= BOUND * np.abs(expected).max()


def test_a_full_context_drops_a_picture_whole_or_refuses(pair: Pair) -> None:
    model, _ = pair
    (span,) = _spans(model, (112, 112))
    prompt: list[Item] = [*range(10, 20), span, *range(20, 26)]
    ends = dict.fromkeys(model.tokenizer.stop_ids, -np.inf)
    options: Any = {"max_tokens": 200, "temperature": 0, "logit_bias": ends}
    if span.positions is not None:
        with pytest.raises(SamplingError, match="positions of its own"):
            model.generate(prompt, context_shift=11, **options)
        return
    for keep in (4, 11, 14):  # before, inside and after the picture
        assert len(model.generate(prompt, context_shift=keep, **options).tokens) == 200
    # half of the rest of the context ends inside the picture
    middle: list[Item] = [*range(10, 90), span, *range(20, 26)]
    assert len(model.generate(middle, context_shift=4, **options).tokens) == 200
