"""Forms that a file may have, for every row: quantized types, layers on two devices."""

from __future__ import annotations

import numpy as np
import pytest

from tests.families.made import Made
from tests.families.rows import TEXT
from tests.support.fake_registry import FakeRegistry, fake

ROWS = TEXT


@pytest.mark.parametrize(("kind", "bound"), [("q8_0", 0.1), ("q4_k_s", 0.5)])
def test_quantized_files_stay_near(made: Made, main_device: str, kind: str, bound: float) -> None:
    """The median over the tokens: a router may choose another expert of two that are nearly as good."""
    expected = made.expected(made.ids)
    with made.load(main_device, kind) as model:
        ours = model.logits(made.ids)
    n = ours.shape[1]
    errors = np.linalg.norm(ours - expected[:, :n], axis=1) / np.linalg.norm(expected[:, :n], axis=1)
    assert 0 < np.median(errors) <= bound


def test_layers_on_two_devices(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second layer, and what it keeps, is on the other of two devices of core's fake family."""
    registry = FakeRegistry(fake("gpu:0"), fake("gpu:1"))
    monkeypatch.setattr("hotshoe.loading.load_all", lambda **options: registry)
    layers = [f"gpu:{i % 2}" for i in range(made.n_layers)]
    with made.load("gpu:0,gpu:1", layer_devices=layers) as model:
        assert list(model.backend.placement.layers) == layers
        made.near(model.logits(made.ids), made.expected(made.ids))
        with model.sequence() as sequence:
            made.near(np.stack([sequence.append(i) for i in made.ids]), made.expected(made.ids))
