"""SmolLM2-135M-Instruct, a real chat model: as transformers computes it from the same weights, on every backend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotshoe
from hotshoe.chat import from_metadata
from hotshoe.runner.text import TextModel
from hotshoe_core.gguf import GGUFFile
from tests.support.smollm2 import require_smollm2

DEVICES = {"reference": "", "cpu": "hotshoe-ggml-cpu", "mlx:cpu": "hotshoe-mlx[cpu]"}
# The largest difference of a logit: ggml, and our products for it, round activations to 8 bits; a logit is 20 to 31.
TOLERANCE = {"reference": 0.01, "cpu": 1.5, "mlx:cpu": 0.01}
PERPLEXITY = {"reference": 1e-4, "cpu": 0.02}  # relative
END = "<|im_end|>"


@pytest.fixture(scope="module")
def path() -> Path:
    return require_smollm2()


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    record = Path(__file__).parents[1] / "data" / "smollm2.json"
    value: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return value


@pytest.fixture(scope="module", params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    if request.param not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip(f"no device {request.param!r}: {DEVICES[request.param]} is not installed")
    return str(request.param)


@pytest.fixture(scope="module")
def model(path: Path, device: str) -> Iterator[TextModel]:
    with load(path, device) as opened:
        yield opened


@pytest.fixture
def fastest(path: Path) -> Iterator[TextModel]:
    """On the best device of this machine, with a context of 256 tokens. Skips the test if that is the reference."""
    name = hotshoe.load_all().devices[0].name
    if name == "reference":
        pytest.skip("too slow on the reference backend: hotshoe-ggml-cpu is not installed")
    with load(path, name, n_ctx=256) as opened:
        yield opened


def load(path: Path, device: str, n_ctx: int = 512) -> TextModel:
    model = hotshoe.load_model(path, device, n_ctx=n_ctx, kv_dtype="f32")
    assert isinstance(model, TextModel)
    return model


def test_the_files_chat_template_and_vocabulary_give_the_recorded_prompts(path: Path, recorded: dict[str, Any]) -> None:
    tokenizer = hotshoe.load_tokenizer(path)
    with GGUFFile(path) as file:
        template = from_metadata(file.metadata, tokenizer)
        for conversation in recorded["conversations"]:
            prompt = template.render(conversation["messages"])
            assert prompt == conversation["prompt"]
            assert tokenizer.encode(prompt, add_special=False) == conversation["ids"]
            assert tokenizer.decode(conversation["tokens"]).removesuffix(END) == conversation["text"]


def test_logits_are_those_of_transformers(device: str, model: TextModel, recorded: dict[str, Any]) -> None:
    """The recorded answer is fed in one pass: so a device that chooses another token once is compared to the end."""
    tolerance = TOLERANCE[device]
    conversations = recorded["conversations"]
    for conversation in conversations if device == "cpu" else conversations[:1]:
        ids, tokens = conversation["ids"], conversation["tokens"]
        logits = model.logits([*ids, *tokens])[len(ids) - 1 : -1]  # (n, vocab)
        chosen = logits[np.arange(len(tokens)), tokens]
        assert np.abs(chosen - conversation["logits"]).max() < tolerance
        clear = np.array(conversation["margins"]) > 2 * tolerance
        assert clear.sum() >= 4
        assert logits.argmax(axis=1)[clear].tolist() == np.array(tokens)[clear].tolist()


def test_greedy_tokens_are_those_of_transformers(device: str, model: TextModel, recorded: dict[str, Any]) -> None:
    n = 32 if device == "cpu" else 4
    for conversation in recorded["conversations"]:
        done = model.generate(conversation["ids"], temperature=0, max_tokens=n)
        expected = [token for token in conversation["tokens"] if token not in model.tokenizer.stop_ids][:n]
        if device == "cpu":  # it may choose another token at the first near tie
            n_clear = next(i for i, m in enumerate(conversation["margins"]) if m <= 2 * TOLERANCE[device])
            assert done.tokens[:n_clear] == expected[:n_clear]
        else:
            assert done.tokens == expected


def test_the_perplexity_of_held_out_text_is_that_of_transformers(
    device: str, model: TextModel, recorded: dict[str, Any]
) -> None:
    if device.startswith("mlx"):
        pytest.skip("too slow on MLX's CPU, where test_logits_are_those_of_transformers compares the same numbers")
    ids, expected = recorded["held_out"]["ids"], recorded["held_out"]["perplexity"]
    assert score(model, ids) == pytest.approx(expected, rel=PERPLEXITY[device])


def score(model: TextModel, ids: list[int]) -> float:
    logits = model.logits(ids)[:-1].astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    chosen = logits[np.arange(len(logits)), ids[1:]] - np.log(np.exp(logits).sum(axis=1))
    return float(np.exp(-chosen.mean()))


def test_the_texts_beside_it_change_no_bit_of_a_row(path: Path) -> None:
    """While its cells are in the first step of attention. Beyond it the sums have another order: see docs/serve.md."""
    pytest.importorskip("hotshoe_ggml")
    from hotshoe_ggml.native import ffi, kernels

    if ffi.string(kernels().hotshoe_kernels_isa()) == b"generic":
        pytest.skip("products are ggml's on this CPU")
    with hotshoe.load_model(path, "cpu", task="text", n_ctx=64, n_sequences=16) as model:

        def first_of(n: int) -> np.ndarray[Any, Any]:
            """The logits of the first of n texts."""
            texts = [model.sequence() for _ in range(n)]
            logits = model.extend([(text, [504 + i, 260, 17]) for i, text in enumerate(texts)])
            for text in texts:
                text.close()
            model.forget()
            return logits[0]

        alone = first_of(1)
        for n in (2, 3, 5, 8, 16):
            np.testing.assert_array_equal(first_of(n), alone)


def test_an_answer_ends_at_the_stop_token(fastest: TextModel, recorded: dict[str, Any]) -> None:
    stream = fastest.stream_chat(recorded["conversations"][0]["messages"], temperature=0, max_tokens=120)
    text = "".join(stream)
    assert stream.completion.finish_reason == "stop"
    assert text.startswith("The sea is")
    assert text.endswith(".")
    assert END not in text


def test_a_grammar_gives_json(fastest: TextModel) -> None:
    pytest.importorskip("llguidance")
    properties = {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}}
    schema = {"type": "object", "properties": properties, "required": [*properties]}
    message = {"role": "user", "content": "Describe a person, Anna, who is 31 years old, as JSON."}
    value = json.loads(fastest.chat([message], json_schema=schema, temperature=0, max_tokens=60).text)
    assert set(value) == set(properties)
    assert "Anna" in value["name"]
    assert value["age"] == 31


def test_a_full_context_shifts_and_the_text_goes_on(fastest: TextModel, recorded: dict[str, Any]) -> None:
    ids = recorded["held_out"]["ids"]
    options: dict[str, Any] = {"temperature": 0, "stop_tokens": [], "logit_bias": dict.fromkeys((0, 2, 4), -100.0)}
    full = fastest.generate(ids, max_tokens=300, **options)
    assert (full.finish_reason, len(full.tokens)) == ("context", 256 - len(ids) + 1)
    shifted = fastest.generate(ids, max_tokens=300, context_shift=4, **options)
    assert (shifted.finish_reason, len(shifted.tokens)) == ("length", 300)
    end = shifted.tokens[len(full.tokens) + 20 :][:100]  # all of it was computed after the shift
    assert score(fastest, end) < 50
