"""Each new family against transformers: files of llama.cpp's converter, on each backend, whole and token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.forward import Forward
from tests.support.recorded import make_recorded
from tests.support.text_models import transformers_logits

IDS = np.random.default_rng(1).integers(0, 250, 21).tolist()
CAUSAL = (
    "MixtralForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Mamba2ForCausalLM",
    "Lfm2ForCausalLM",
)
BOUND = 1e-5  # of the largest logit, in f32


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of transformers that a recorded file was converted from, made once."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = make_recorded(name, tmp_path_factory.mktemp("recorded") / "hf")
        return made[name]

    return get


def near(ours: np.ndarray, expected: np.ndarray) -> None:
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() <= BOUND * np.abs(expected).max()


@pytest.mark.parametrize("name", CAUSAL)
def test_logits_are_those_of_transformers(name: str, device: str, recorded: Callable[[str], Path], data: Path) -> None:
    expected = transformers_logits(recorded(name), IDS)
    with Forward(data / "llamacpp" / f"{name}.gguf", device) as forward:
        near(forward.logits(IDS), expected)
        near(forward.logits(IDS, [1] * len(IDS)), expected)
        near(forward.logits(IDS, [8, 1, 12]), expected)
