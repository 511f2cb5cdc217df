"""Context shift: tokens in the middle are removed, and later keys are rotated to their new positions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe.runner.text import TextModel
from hotshoe_core.errors import SamplingError
from tests.support.text_models import assert_close, load

IDS = np.random.default_rng(2).integers(0, 250, 40).tolist()
BEFORE, GONE = 28, 9  # tokens computed, and how many of them are then forgotten

SHIFTED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "neox": ("Qwen2ForCausalLM", {}),
    "a window and two kinds of rope": ("Gemma3ForCausalLM", {}),
    "yarn scales keys too": (
        "Qwen2ForCausalLM",
        {
            "rope_parameters": {
                "rope_theta": 10000.0,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
}


def hidden_logits(folder: Path, window: int | None) -> np.ndarray:
    """Return transformers' logits if tokens after BEFORE do not attend to the first GONE. RoPE depends on distances."""
    torch = pytest.importorskip("torch", reason="the reference logits need torch")
    transformers = pytest.importorskip("transformers", reason="the reference logits need transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    n = len(IDS)
    seen = torch.tril(torch.ones(n, n, dtype=torch.bool))
    seen[BEFORE:, :GONE] = False

    def mask(visible: Any) -> Any:
        return torch.where(visible, 0.0, -torch.inf)[None, None]

    masks: Any = mask(seen)
    if window is not None:
        near = torch.triu(torch.ones(n, n, dtype=torch.bool), 1 - window)
        masks = {"full_attention": masks, "sliding_attention": mask(seen & near)}
    with torch.no_grad():
        return model(torch.tensor([IDS]), attention_mask=masks).logits[0].numpy()


@pytest.mark.parametrize("case", SHIFTED)
def test_logits_after_a_shift_are_those_of_hidden_tokens(
    case: str, device: str, folder: Callable[..., Path], gguf: Callable[..., Path]
) -> None:
    architecture, changes = SHIFTED[case]
    expected = hidden_logits(folder(architecture, **changes), 16 if architecture.startswith("Gemma3") else None)
    with load(gguf(architecture, **changes), device) as model, model.sequence() as sequence:
        sequence.append(*IDS[:BEFORE])
        sequence.shift(0, GONE)
        assert sequence.ids == IDS[GONE:BEFORE]
        after = np.stack([sequence.append(i) for i in IDS[BEFORE:]])
        assert sequence.n_computed == len(IDS) - GONE
        assert_close(after, expected[BEFORE:])


def test_with_one_layer_a_shift_is_as_if_the_tokens_had_never_been(device: str, gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM", num_hidden_layers=1), device) as model, model.sequence() as sequence:
        sequence.append(*IDS[:BEFORE])
        sequence.shift(3, GONE)  # the first tokens stay where they are
        after = sequence.append(*IDS[BEFORE:])
        assert_close(after, model.logits([*IDS[:3], *IDS[3 + GONE :]])[-1])


def test_shared_tokens_are_computed_again(model: TextModel) -> None:
    first = model.sequence(IDS[:BEFORE])
    first.append()
    other = first.fork()
    first.shift(2, 5)
    left = [*IDS[:2], *IDS[7:BEFORE]]
    assert_close(first.append(9), model.logits([*left, 9])[-1])
    assert_close(other.append(9), model.logits([*IDS[:BEFORE], 9])[-1])


@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
def test_generation_goes_on(kv_dtype: str, device: str, gguf: Callable[..., Path]) -> None:
    with load(gguf("LlamaForCausalLM"), device, n_ctx=32, kv_dtype=kv_dtype) as model:
        options = {"temperature": 0, "stop_tokens": [], "logit_bias": {1: -100.0}}
        stopped = model.generate(IDS[:20], **options)
        assert (stopped.finish_reason, len(stopped.tokens)) == ("context", 13)
        for keep in (0, 4):
            on = model.generate(IDS[:20], max_tokens=60, context_shift=keep, **options)
            assert (on.finish_reason, len(on.tokens)) == ("length", 60)
            assert on.tokens[:13] == stopped.tokens
        with pytest.raises(SamplingError, match="context_shift"):
            model.generate(IDS[:20], context_shift=31)
        with pytest.raises(SamplingError, match="context_shift"):
            model.generate(IDS[:20], context_shift=-1)


def test_a_shifted_sequence_is_no_prefix_for_others(device: str, gguf: Callable[..., Path]) -> None:
    """Its keys were rotated and contain removed tokens, so a text of the same tokens is computed again."""
    left = [*IDS[:3], *IDS[3 + GONE :]]
    with load(gguf("LlamaForCausalLM"), device) as fresh:
        expected = fresh.logits([*left, 5])
    with load(gguf("LlamaForCausalLM"), device) as model:
        with model.sequence() as sequence:
            sequence.append(*IDS[:BEFORE])
            sequence.shift(3, GONE)
            turned = sequence.append(*IDS[BEFORE:])
            assert np.abs(turned - expected[-2]).max() > 0.1 * np.abs(expected[-2]).max()
            assert sequence.ids == left
            twin = sequence.fork()  # one that is meant to go on with it does
            assert twin.n_computed == sequence.n_computed == len(left)
            np.testing.assert_allclose(twin.append(5), sequence.append(5), atol=1e-5)
            twin.close()
            with model.sequence(left) as other:  # while it lives
                assert_close(other.append(), expected[-2])
                model.forget()
        model.forget()
        with model.sequence() as sequence:
            sequence.append(*IDS[:BEFORE])
            sequence.shift(3, GONE)
            sequence.append(*IDS[BEFORE:])
        with model.sequence([*left, 5]) as other:  # and when it is gone
            assert_close(other.append(), expected[-1])


def test_what_stands_before_a_shift_serves_others(model: TextModel) -> None:
    with model.sequence() as sequence:
        sequence.append(*IDS[:BEFORE])
        sequence.shift(7, GONE)
        done = model.generate([*IDS[:7], *IDS[7 + GONE :]], max_tokens=1)
        assert done.n_cached == 7


def test_a_generation_that_has_shifted_leaves_no_prefix(gguf: Callable[..., Path], device: str) -> None:
    options: dict[str, Any] = {"temperature": 0, "stop_tokens": [], "logit_bias": {1: -100.0}}
    with load(gguf("LlamaForCausalLM"), device, n_ctx=32) as model:
        shifted = model.generate(IDS[:20], max_tokens=40, context_shift=0, **options)
        held = max(model.engine._slots._slots, key=lambda slot: len(slot.rows))
        assert held.shifted_from == 0
        text = [int(row) for row in held.rows]  # type: ignore[arg-type]
        assert text == shifted.tokens[-len(text) - 1 : -1]
        with load(gguf("LlamaForCausalLM"), device, n_ctx=32) as fresh:
            expected = fresh.logits(text)[-1]
        with model.sequence(text) as sequence:
            assert_close(sequence.append(), expected)
