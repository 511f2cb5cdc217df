"""Encoders: the states of every token, and the vectors of texts, of every row on every device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.families.made import Made
from tests.families.recorded import STRIDE, read_record
from tests.families.rows import ENCODERS
from tests.support.fake_registry import FakeRegistry, fake

ROWS = ENCODERS


def texts(made: Made) -> list[list[int]]:
    """Three texts of different lengths, in no order."""
    n = len(made.ids)
    return [made.ids[: n // 3], made.ids, made.ids[n // 2 :]]


def test_states_are_those_of_transformers(made: Made, device: str) -> None:
    with made.encoder(device) as model:
        made.near(model.states_of(made.ids), made.expected(made.ids))
        states = model._compute(texts(made), pooled=False)
        for text, ours in zip(texts(made), states, strict=True):
            made.near(ours[: len(text)], made.expected(text))


def test_vectors_are_those_of_transformers(made: Made, device: str) -> None:
    with made.encoder(device) as model:
        vectors = model._compute(texts(made))
    for text, ours in zip(texts(made), vectors, strict=True):
        expected = made.vector(made.expected(text))
        assert np.abs(ours - expected).max() <= made.bound * np.abs(expected).max()


def test_results_are_those_of_llama_cpp(made: Made, main_device: str) -> None:
    theirs, why = read_record(made.name).logits, made.row.llamacpp
    if not theirs.size:
        assert why, "no states are recorded"
        pytest.xfail(why)
    with made.encoder(main_device) as model:
        ours = model.states_of(made.ids) if made.row.vector is None else model._compute([made.ids])
    ours = ours[:, ::STRIDE]
    error = np.abs(ours - theirs).max() / np.abs(theirs).max()
    if why:
        assert error > made.row.llamacpp_bound, "llama.cpp agrees: remove the reason why it does not"
        pytest.xfail(why)
    assert error <= made.llamacpp_bound


def test_layers_on_two_devices(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = FakeRegistry(fake("gpu:0"), fake("gpu:1"))
    monkeypatch.setattr("hotshoe.loading.load_all", lambda **options: registry)
    layers = [f"gpu:{i % 2}" for i in range(made.n_layers)]
    with made.encoder("gpu:0,gpu:1", layer_devices=layers) as model:
        assert list(model.backend.placement.layers) == layers
        made.near(model.states_of(made.ids), made.expected(made.ids))
