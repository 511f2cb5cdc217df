"""llama.cpp's mtmd on the same pair of files: the prompt, the rows of a picture, and the greedy continuation."""

from __future__ import annotations

import numpy as np
import pytest

from hotshoe.runner.items import EmbeddingSpan, Item
from hotshoe.runner.text import TextModel
from tests.towers.made import MadeTower
from tests.towers.recorded import N_TOKENS, Seen, prompt_around, read_recorded
from tests.towers.row import picture

MARGIN = 1e-4
"""The smallest distance of the second best logit, as a part of the largest one, with which both take the same token."""


@pytest.fixture
def seen(made: MadeTower) -> Seen:
    if made.row.seen_size is None:
        pytest.skip("nothing is recorded of llama.cpp, see seen_size")
    found = read_recorded(made.name).seen
    assert found is not None
    assert found.least_margin > MARGIN
    return found


def _items(made: MadeTower, model: TextModel) -> list[Item]:
    """Our prompt, without the texts that llama.cpp leaves out."""
    encoder = model.images
    assert encoder is not None
    assert made.row.seen_size is not None
    before, after = made.row.written
    text = prompt_around(f"{before}{encoder.tower.placeholder}{after}")
    items = encoder.items(text, [picture(*made.row.seen_size)], add_special=False)
    unseen = set(model.tokenizer.encode(made.row.unseen, add_special=False))
    assert unseen <= {item for item in items if not isinstance(item, EmbeddingSpan)}
    return [item for item in items if isinstance(item, EmbeddingSpan) or item not in unseen]


def _breaks(made: MadeTower, model: TextModel) -> set[int]:
    return set(model.tokenizer.encode(made.row.breaks, add_special=False))


def test_prompt(made: MadeTower, seen: Seen) -> None:
    model, ids = made.load("reference"), []
    breaks = _breaks(made, model)
    for item in _items(made, model):
        ids += [-1] * len(item) if isinstance(item, EmbeddingSpan) else [-1 if item in breaks else item]
    assert ids == seen.ids


def test_rows(made: MadeTower, seen: Seen, device: str) -> None:
    model = made.load(device)
    breaks, number = _breaks(made, model), 0
    for item in _items(made, model):
        if not isinstance(item, EmbeddingSpan):
            number += item in breaks
            continue
        for row in item.array:
            place = made.row.seen_order[number] if made.row.seen_order else number
            if not place % seen.step:
                error = np.abs(row - seen.array[place // seen.step]).max()
                assert error <= made.row.seen_bound * np.abs(seen.array).max()
            number += 1
    assert number == seen.ids.count(-1) > 0


def test_greedy_tokens(made: MadeTower, seen: Seen, device: str) -> None:
    model = made.load(device)
    assert model.generate(_items(made, model), max_tokens=N_TOKENS, temperature=0).tokens == seen.tokens
