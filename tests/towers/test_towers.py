"""Pictures against transformers: their pixels, their rows, and the logits of texts with pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotshoe.images import read_image
from hotshoe.runner.items import EmbeddingSpan
from tests.towers.made import MadeTower, assert_close
from tests.towers.row import picture

Array = np.ndarray[Any, Any]


def test_pixels(made: MadeTower) -> None:
    tower = made.load("reference").images.tower  # type: ignore[union-attr]
    for height, width in made.row.sizes:
        pixels = picture(height, width)
        theirs = made.processed([pixels])["pixel_values"].numpy()
        ours = made.row.pixels(tower, tower.prepare(read_image(pixels)))
        assert ours.reshape(-1).shape == theirs.reshape(-1).shape
        assert np.abs(ours.reshape(-1) - theirs.reshape(-1)).max() <= 1e-5


def test_prompt(made: MadeTower) -> None:
    encoder = made.load("reference").images
    if not made.row.whole_processor or encoder is None:
        pytest.skip("the row has no processor of texts")
    place = encoder.tower.placeholder
    for size in made.row.sizes:
        pictures = [picture(*size), picture(84, 112)]
        text = f"one {place}{place} and two"
        items = encoder.items(text, pictures, add_special=False)
        assert made.ids(items) == made.prompt(text, pictures)


def test_rows(made: MadeTower, device: str) -> None:
    model = made.load(device)
    for height, width in made.row.sizes:
        pixels = picture(height, width)
        spans = [i for i in model.images.items("", [pixels], add_special=False) if isinstance(i, EmbeddingSpan)]  # type: ignore[union-attr]
        assert_close(np.concatenate([span.array for span in spans]), made.features([pixels]), made.bound)


@pytest.mark.parametrize("where", ["first", "last", "two", "none"])
def test_logits(made: MadeTower, device: str, where: str) -> None:
    model = made.load(device)
    encoder = model.images
    assert encoder is not None
    place = encoder.tower.placeholder
    first, second = (picture(*size) for size in ((84, 112), (70, 60)))
    text, pictures = {
        "first": (f"{place} the quick brown fox", [first]),
        "last": (f"what is this? {place}", [first]),
        "two": (f"one {place} and two {place} here", [first, second]),
        "none": ("the quick brown fox", []),
    }[where]
    items = encoder.items(text, pictures, add_special=False)
    theirs = made.logits(made.ids(items), pictures)
    assert_close(model.logits(items), theirs, made.bound)
    with model.sequence() as sequence:  # in pieces, of which the cache keeps the beginning
        last = [(sequence.append(*part), len(sequence) - 1) for part in (items[:2], items[2:3], items[3:]) if part]
    assert_close(np.stack([logits for logits, _ in last]), theirs[[row for _, row in last]], made.bound)
