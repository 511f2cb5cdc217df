"""Sounds against transformers: their rows, and the logits of texts with sounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hotshoe.runner.items import EmbeddingSpan
from hotshoe.runner.media_encoder import MediaEncoder
from hotshoe.runner.text import TextModel
from tests.towers.made import assert_close
from tests.towers.row import sound
from tests.towers.sounds import MadeSound

Array = np.ndarray[Any, Any]
RATE = 16_000


def _encoder(model: TextModel) -> MediaEncoder:
    assert model.audio is not None
    return model.audio


def test_rows(heard: MadeSound, device: str) -> None:
    model = heard.load(device)
    for seconds in heard.row.seconds:
        samples = sound(seconds)
        items = _encoder(model).items("", [(samples, RATE)], add_special=False)
        ids = heard.ids(items)
        embeds, _ = heard.heard(ids, [samples])
        ours = np.concatenate([item.array for item in items if isinstance(item, EmbeddingSpan)])
        assert_close(ours, embeds[np.array(ids) == heard.row_id], heard.bound)


@pytest.mark.parametrize("where", ["first", "last", "two", "none"])
def test_logits(heard: MadeSound, device: str, where: str) -> None:
    model = heard.load(device)
    encoder = _encoder(model)
    place = encoder.tower.placeholder
    first, second = sound(2.0), sound(3.21)
    text, sounds = {
        "first": (f"{place} the quick brown fox", [first]),
        "last": (f"what is this? {place}", [first]),
        "two": (f"one {place} and two {place} here", [first, second]),
        "none": ("the quick brown fox", []),
    }[where]
    items = encoder.items(text, [(samples, RATE) for samples in sounds], add_special=False)
    _, theirs = heard.heard(heard.ids(items), sounds)
    assert_close(model.logits(items), theirs, heard.bound)
    with model.sequence() as sequence:  # in pieces, of which the cache keeps the beginning
        last = [(sequence.append(*part), len(sequence) - 1) for part in (items[:2], items[2:3], items[3:]) if part]
    assert_close(np.stack([logits for logits, _ in last]), theirs[[row for _, row in last]], heard.bound)
