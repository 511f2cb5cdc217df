"""The model that ships with the examples: tokens as llama.cpp chooses them, and the same text as likely everywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.runner.text import TextModel
from hotshoe_core.gguf import GGUFFile
from tests.support.as_f16 import as_f16

EXAMPLES = Path(__file__).parents[2] / "examples"
MODEL = EXAMPLES / "models" / "kjv-3m-q8_0.gguf"
# How much the order of sums can move a logit: products with q8_0 weights round activations to 8 bits.
NEAR_TIE = {"f16": 0.01, "q8_0": 0.2}
PYTORCH = 18.9177  # perplexity of kjv-held-out.txt in float32, before the weights were quantized


@pytest.fixture(scope="module")
def recorded(data: Path) -> list[dict[str, Any]]:
    return json.loads((data / "kjv-llamacpp.json").read_text(encoding="utf-8"))["prompts"]


def load(path: Path, device: str, flash_attention: Any = "auto") -> TextModel:
    if device not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip(f"no device {device!r}: hotshoe-ggml-cpu is not installed")
    # so small a model waits most. With ggml's attention, ggml's products too: all as in llama.cpp
    repack: Any = "engine" if flash_attention == "on" else True
    model = hotshoe.load_model(path, device, n_threads=1, flash_attention=flash_attention, repack=repack)
    assert isinstance(model, TextModel)
    return model


def test_the_file_is_small_and_says_what_it_is() -> None:
    assert MODEL.stat().st_size <= 4_000_000
    with GGUFFile(MODEL) as file:
        assert file.metadata["general.name"] == "KJV 3M"
        assert file.metadata["general.license"] == "mit"
        assert "King James" in str(file.metadata["general.description"])


def test_prompts_are_tokenized_as_by_llama_cpp(recorded: list[dict[str, Any]]) -> None:
    with load(MODEL, "reference") as model:
        for prompt in recorded:
            assert model.tokenizer.encode(prompt["text"]) == prompt["ids"], prompt["text"]


@pytest.mark.parametrize("dtype", ["f16", "q8_0"])
@pytest.mark.parametrize("flash_attention", ["on", "auto"])
def test_continuations_are_llama_cpps(
    dtype: str, flash_attention: str, recorded: list[dict[str, Any]], tmp_path: Path
) -> None:
    """With ggml's attention and products, as in llama.cpp: the same tokens, unless llama.cpp's own settings part there.
    With ours, which round elsewhere, as those settings do: the same but at near ties. Of 48 prompts half for each."""
    assert len(recorded) == 48
    prompts = recorded[flash_attention == "on" :: 2]
    path = MODEL if dtype == "q8_0" else as_f16(MODEL, tmp_path / "f16.gguf")
    same = 0
    for prompt in prompts:
        # loaded again: what other texts left in the cache changes the order of attention's sums
        with load(path, "cpu", flash_attention) as model:
            expected, settled = prompt[dtype]["tokens"], prompt[dtype]["settled"]
            assert len(expected) >= 128
            tokens = greedy(model, prompt["ids"], len(expected))
            same += tokens == expected
            if tokens != expected:
                message, gap = difference(model, prompt, dtype, tokens)
                assert gap < NEAR_TIE[dtype], message
                if flash_attention == "on" and records_variant():
                    assert tokens[:settled] == expected[:settled], message
    if records_variant():  # q8_0 with our products: 10 of 24; llama.cpp's own four settings agree on 21 of 48
        assert same >= (21 if flash_attention == "on" or dtype == "f16" else 8)


def records_variant() -> bool:
    """Whether ggml computes with the instructions that it had when llama.cpp was recorded."""
    return any("zen4" in str(d.library) for d in hotshoe.load_all().devices if d.name == "cpu")


def greedy(model: TextModel, ids: list[int], n: int) -> list[int]:
    """The best token, n times; the end of a text is a token like any other."""
    tokens: list[int] = []
    while len(tokens) < n:
        done = model.generate([*ids, *tokens], temperature=0, max_tokens=n - len(tokens))
        tokens += done.tokens
        if done.finish_reason == "stop":
            assert model.tokenizer.eos is not None
            tokens.append(model.tokenizer.eos)
    return tokens


def difference(model: TextModel, prompt: dict[str, Any], dtype: str, tokens: list[int]) -> tuple[str, float]:
    """Where two continuations part, in words, and how far the two tokens' logits are apart."""
    expected = prompt[dtype]["tokens"]
    at = next(i for i, (ours, theirs) in enumerate(zip(tokens, expected)) if ours != theirs)
    logits = model.logits([*prompt["ids"], *tokens[:at]])[-1]
    gap = abs(float(logits[tokens[at]] - logits[expected[at]]))
    return (
        f"{prompt['text']!r}, {dtype}: token {at} is {tokens[at]}, in llama.cpp {expected[at]}; their logits are "
        f"{gap:.5f} apart. llama.cpp's least margin in this continuation: {prompt[dtype]['least_margin']}"
    ), gap


def test_held_out_text_is_as_likely_on_every_device(data: Path) -> None:
    texts = (data / "kjv-held-out.txt").read_text(encoding="utf-8").strip().split("\n\n")
    found = {}
    for device in ("reference", "cpu"):
        with load(MODEL, device) as model:
            scores = [model.score(text) for text in texts]
        assert max(s.n_tokens for s in scores) <= 512
        found[device] = float(np.exp(-sum(s.log_likelihood for s in scores) / sum(s.n_tokens - 1 for s in scores)))
    assert found["reference"] == pytest.approx(PYTORCH, rel=2e-3)  # what quantizing to q8_0 costs
    assert found["cpu"] == pytest.approx(found["reference"], rel=2e-3)  # ggml quantizes activations, too


def test_the_example_writes_the_same_verse_again() -> None:
    command = [sys.executable, EXAMPLES / "write.py", "And God said", "--verses", "1", "--device", "reference"]
    done = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    beginning, _, end = done[0].stdout.strip().partition("\n\n")
    assert beginning.startswith("And God said")
    assert "\n" not in beginning
    assert "tokens/s" in end
    assert done[1].stdout.startswith(done[0].stdout.partition("speed:")[0])
    assert done[0].stderr == ""
