"""llama.cpp's mtmd on the same pair of files: the prompt, the rows of a picture or sound, and greedy tokens."""

from __future__ import annotations

import numpy as np
import pytest

from hotshoe.runner.items import EmbeddingSpan, Item
from hotshoe.runner.text import TextModel
from tests.towers.made import MadeTower
from tests.towers.recorded import N_TOKENS, Seen, prompt_around, read_recorded

MARGIN = 1e-4
"""The smallest distance of the second best logit, as a part of the largest one, with which both take the same token."""


@pytest.fixture
def seen(either: MadeTower) -> Seen:
    if either.seen_source is None:
        pytest.skip("nothing is recorded of llama.cpp, see seen_size and heard")
    found = read_recorded(either.name).seen
    assert found is not None
    assert found.least_margin > MARGIN
    return found


def _items(either: MadeTower, model: TextModel) -> list[Item]:
    """Our prompt, without the texts that llama.cpp leaves out."""
    encoder = either.encoder(model)
    before, after = either.row.written
    text = prompt_around(f"{before}{encoder.tower.placeholder}{after}")
    items = encoder.items(text, [either.seen_source], add_special=False)
    unseen = set(model.tokenizer.encode(either.row.unseen, add_special=False))
    assert unseen <= {item for item in items if not isinstance(item, EmbeddingSpan)}
    return [item for item in items if isinstance(item, EmbeddingSpan) or item not in unseen]


def _breaks(either: MadeTower, model: TextModel) -> set[int]:
    return set(model.tokenizer.encode(either.row.breaks, add_special=False))


def test_prompt(either: MadeTower, seen: Seen) -> None:
    model, ids = either.load("reference"), []
    breaks = _breaks(either, model)
    for item in _items(either, model):
        ids += [-1] * len(item) if isinstance(item, EmbeddingSpan) else [-1 if item in breaks else item]
    assert ids == seen.ids


def test_rows(either: MadeTower, seen: Seen, device: str) -> None:
    model = either.load(device)
    breaks, number = _breaks(either, model), 0
    for item in _items(either, model):
        if not isinstance(item, EmbeddingSpan):
            number += item in breaks
            continue
        for row in item.array:
            place = either.row.seen_order[number] if either.row.seen_order else number
            if not place % seen.step:
                error = np.abs(row - seen.array[place // seen.step]).max()
                assert error <= max(either.row.seen_bound, either.least_bound) * np.abs(seen.array).max()
            number += 1
    assert number == seen.ids.count(-1) > 0


def test_greedy_tokens(either: MadeTower, seen: Seen, device: str) -> None:
    model = either.load(device)
    assert model.generate(_items(either, model), max_tokens=N_TOKENS, temperature=0).tokens == seen.tokens
