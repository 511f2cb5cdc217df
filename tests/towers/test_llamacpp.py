"""llama.cpp's mtmd on the same pair of files: the prompt, the rows of a picture, and the greedy continuation."""

from __future__ import annotations

import numpy as np
import pytest

from hotshoe.runner.items import EmbeddingSpan, Item
from hotshoe.runner.text import TextModel
from tests.towers.made import MadeTower
from tests.towers.recorded import N_TOKENS, Seen, prompt_around, read_recorded
from tests.towers.row import picture

BOUND = 1e-3
"""The largest error of rows, as a part of the largest one: llama.cpp reads GELU from a table in F16."""
MARGIN = 1e-4
"""The smallest distance of the second best logit, as a part of the largest one, with which both take the same token."""


@pytest.fixture
def seen(made: MadeTower) -> Seen:
    found = read_recorded(made.name).seen
    assert (found is None) == (made.row.seen_size is None)
    if found is None:
        pytest.skip("llama.cpp does not compute the row, see seen_size")
    assert found.least_margin > MARGIN
    return found


def _spans(made: MadeTower, model: TextModel) -> tuple[list[int], list[EmbeddingSpan]]:
    """The ids of our prompt, -1 for each row of the picture; and the picture."""
    encoder = model.images
    assert encoder is not None
    assert made.row.seen_size is not None
    text = prompt_around(encoder.tower.placeholder)
    items = encoder.items(text, [picture(*made.row.seen_size)], add_special=False)
    spans = [item for item in items if isinstance(item, EmbeddingSpan)]
    return [i for item in items for i in ([-1] * len(item) if isinstance(item, EmbeddingSpan) else [item])], spans


def test_prompt(made: MadeTower, seen: Seen) -> None:
    model = made.load("reference")
    unseen = set(model.tokenizer.encode(made.row.unseen, add_special=False))
    ids = _spans(made, model)[0]
    assert unseen <= set(ids)
    assert [i for i in ids if i not in unseen] == seen.ids


def test_rows(made: MadeTower, seen: Seen, device: str) -> None:
    rows = np.concatenate([span.array for span in _spans(made, made.load(device))[1]])
    assert np.abs(rows - seen.array).max() <= BOUND * np.abs(seen.array).max()


def test_greedy_tokens(made: MadeTower, seen: Seen, device: str) -> None:
    model = made.load(device)
    spans = iter(_spans(made, model)[1])
    starts = [i for i, token in enumerate(seen.ids) if token >= 0 or i == 0 or seen.ids[i - 1] >= 0]
    prompt: list[Item] = [seen.ids[i] if seen.ids[i] >= 0 else next(spans) for i in starts]
    assert model.generate(prompt, max_tokens=N_TOKENS, temperature=0).tokens == seen.tokens
