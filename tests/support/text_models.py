"""Tiny text models as GGUF files, opened on each backend, and what transformers says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.convert import convert
from hotshoe.runner.text import TextModel
from tests.support.tiny_text import make_tiny

__all__ = ["assert_close", "device", "folder", "gguf", "load", "model", "transformers_logits"]

LEAST = 1e-3  # of the largest logit, in f32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A tiny Hugging Face folder, made once for each architecture and changes."""
    made: dict[str, Path] = {}

    def get(architecture: str, **changes: Any) -> Path:
        key = f"{architecture}{sorted(changes.items())}"
        if key not in made:
            made[key] = make_tiny(architecture, tmp_path_factory.mktemp("tiny") / "hf", **changes)
        return made[key]

    return get


@pytest.fixture(scope="module")
def gguf(folder: Callable[..., Path]) -> Callable[..., Path]:
    def get(architecture: str, dtype: str = "f32", **changes: Any) -> Path:
        source = folder(architecture, **changes)
        target = source.parent / f"{dtype}.gguf"
        return target if target.exists() else convert(source, target, dtype)

    return get


_NEEDS = {"cpu": "hotshoe-ggml-cpu", "mlx:cpu": "hotshoe-mlx[cpu]"}


@pytest.fixture(params=["reference", *_NEEDS])
def device(request: pytest.FixtureRequest) -> str:
    if request.param not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip(f"no device {request.param!r}: {_NEEDS[request.param]} is not installed")
    return str(request.param)


@pytest.fixture
def model(gguf: Callable[..., Path]) -> Iterator[TextModel]:
    device = hotshoe.load_all().devices[0].name
    with load(gguf("LlamaForCausalLM"), device) as opened:
        yield opened


def load(path: Path, device: str, **options: Any) -> TextModel:
    options = {"kv_dtype": "f32", "n_ctx": 128} | options
    return hotshoe.load_model(path, device, task="text", **options)


def transformers_logits(folder: Path, ids: list[int]) -> np.ndarray:
    torch = pytest.importorskip("torch", reason="the reference logits need torch")
    transformers = pytest.importorskip("transformers", reason="the reference logits need transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].numpy()


def assert_close(ours: np.ndarray, expected: np.ndarray, least: float = LEAST) -> None:
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() <= least * np.abs(expected).max()
    assert (ours.argmax(axis=-1) == expected.argmax(axis=-1)).all()
