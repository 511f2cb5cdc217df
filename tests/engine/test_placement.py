"""Models on several devices: what each holds, and that the numbers do not notice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hotshoe
from hotshoe.families import find_model
from hotshoe.nn.binder import bind
from hotshoe.placement import split_layers
from hotshoe.runner.params import RunnerParams
from hotshoe.runner.text import TextModel
from hotshoe.tokenizers import load_tokenizer
from hotshoe_core import Device, DeviceType, Placement
from hotshoe_core.errors import InsufficientMemoryError
from hotshoe_core.gguf import GGUFFile
from hotshoe_core.testing.fake import open_fake

MODEL = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
N_LAYERS = 4


def device(name: str, free: int) -> Device:
    return Device(name, DeviceType.GPU, "fake", "fake", memory_total=free, memory_free=free)


@pytest.mark.parametrize(
    ("free", "n", "expected"),
    [
        ((8,), 3, "aaa"),
        ((8, 8), 4, "aabb"),
        ((6, 2), 4, "aaab"),
        ((0, 8), 4, "aabb"),  # unknown: equally
        ((1, 1, 1), 2, "ac"),
        ((1, 1000), 2, "bb"),
        ((8, 8), 0, ""),
    ],
)
def test_layers_go_by_free_memory(free: tuple[int, ...], n: int, expected: str) -> None:
    placement = split_layers([device(name, size) for name, size in zip("abc", free, strict=False)], n)
    assert "".join(placement.layers) == expected
    assert (placement.input, placement.output) == ((expected[0], expected[-1]) if expected else ("a", "a"))


def load(n_devices: int, capacity: int = 1 << 40, placement: Placement | None = None) -> TextModel:
    file = GGUFFile(MODEL)
    backend = open_fake(n_devices, capacity=capacity)
    kind = find_model(file.metadata)
    model = kind(kind.Config.from_metadata(file.metadata))
    placement = placement or split_layers(backend.devices, model.config.n_layers)
    bind(model, file, backend, placement=placement, ignore=model.unused_tensors)
    tokenizer = load_tokenizer(file.metadata)
    return TextModel(model, tokenizer, backend, file, n_ctx=128, why="a test", params=RunnerParams())


@pytest.fixture(scope="module")
def reference() -> Iterator[TextModel]:
    with hotshoe.load_model(MODEL, "reference", n_ctx=128) as model:
        assert isinstance(model, TextModel)
        yield model


@pytest.mark.parametrize("n_devices", [1, 2, 3])
def test_a_model_over_devices_gives_the_same_logits(reference: TextModel, n_devices: int) -> None:
    ids = reference.tokenizer.encode("And God said, Let there be")
    with load(n_devices) as model:
        expected = reference.logits(ids)
        np.testing.assert_allclose(model.logits(ids), expected, atol=1e-4 * np.abs(expected).max())
        assert model.generate("And God said", max_tokens=20, temperature=0).text == (
            reference.generate("And God said", max_tokens=20, temperature=0).text
        )
        assert [d.device for d in model.memory().devices if d.graph.size] == [f"fake:{i}" for i in range(n_devices)]


def test_each_device_holds_its_layers_and_their_cache() -> None:
    with load(2) as model:
        first, second = model.memory().devices
        assert set(first.cache) == {0, 1}
        assert set(second.cache) == {2, 3}
        assert set(first.weights) - {-1} == {0, 1}
        assert first.input_weights.size > 0
        assert set(second.weights) - {-1} == {2, 3, N_LAYERS}  # the last norm is the output's


def test_a_cache_that_does_not_fit_names_device_and_layer() -> None:
    with load(1) as model:
        weights = sum(m.size for m in model.memory().devices[0].weights.values())
    with pytest.raises(InsufficientMemoryError) as caught:
        load(1, capacity=weights + 100_000)
    assert any("cache of layer" in line and "failed" in line for line in str(caught.value).splitlines())
