"""Models on MLX compared with ggml-cpu and transformers. tests/engine runs all families on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hotshoe
from hotshoe.convert import convert
from hotshoe_core.eager.adapter import EagerBackend
from tests.families.row import make_folder
from tests.families.rows import ROWS
from tests.support.as_f16 import as_f16
from tests.support.minilm import Reference

pytest.importorskip("hotshoe_mlx", reason="hotshoe-mlx is not installed")
pytest.importorskip("mlx.core", reason="mlx is not installed, or has no engine for this machine")

SHIPPED = Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf"
GREEDY = hotshoe.SamplingParams(temperature=0, max_tokens=80)
PROMPT = "In the beginning God created"


def need(device: str) -> str:
    if device not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip(f"no device {device!r}: hotshoe-ggml-cpu is not installed")
    return device


@pytest.mark.parametrize("dtype", ["q8_0", "f16"])
def test_the_shipped_model_writes_what_it_writes_on_ggml(dtype: str, tmp_path: Path) -> None:
    path = SHIPPED if dtype == "q8_0" else as_f16(SHIPPED, tmp_path / "f16.gguf")
    tokens, logits = [], []
    for device in (need("cpu"), "mlx:cpu"):
        with hotshoe.load_model(path, device, kv_dtype="f32") as model:
            tokens.append(model.generate(PROMPT, GREEDY).tokens)
            logits.append(model.logits(model.tokenizer.encode(PROMPT)))
    assert len(tokens[0]) == 80
    assert tokens[0] == tokens[1]
    # ggml rounds activations to 8 bits before it multiplies by q8_0
    np.testing.assert_allclose(logits[1], logits[0], atol=0.2 if dtype == "q8_0" else 0.02)


def test_nothing_is_traced_again_at_the_second_token() -> None:
    with hotshoe.load_model(SHIPPED, "mlx:cpu") as model:
        model.generate(PROMPT, GREEDY)
        backend = model.backend
        assert isinstance(backend, EagerBackend)
        counters = backend.counters
        # the prompt, then tokens at a few cache lengths; the largest graph is compiled at load, and not run
        assert counters.traced == counters.compiled - 1 < 8


def test_minilm_gives_transformers_vectors(minilm_gguf: Callable[[str], Path], minilm_reference: Reference) -> None:
    texts = ["It runs.", "A much longer sentence about cameras, their flashes, and the shoe these slide into.", "no"]
    with hotshoe.load_model(minilm_gguf("f32"), "mlx:cpu") as model:
        got = model.embed(texts)
    cosine = (got * minilm_reference.embed(texts)).sum(-1)
    assert cosine.min() > 0.9999


def test_a_prompt_of_qwen35_is_no_loop_over_tokens(tmp_path: Path) -> None:
    """24 delta layers and 8 with attention, 512 tokens: a step at a time, each delta layer had 15,370 nodes."""
    row = ROWS["qwen35"]
    config = {**row.config, "num_hidden_layers": 32, "max_position_embeddings": 512}
    folder = make_folder(replace(row, config=config), tmp_path / "hf")
    with hotshoe.load_model(convert(folder, tmp_path / "m.gguf", "f32"), "mlx:cpu") as model:
        assert 2000 < len(model.placements(512).nodes) < 12_000
