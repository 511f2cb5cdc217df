"""Checkpoints that hold in one tensor what transformers saves in several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotshoe.convert import convert
from tests.support.converted import tensors
from tests.support.text_models import load
from tests.support.tiny_text import make_tiny


def join(folder: Path, whole: str, *parts: str) -> None:
    """Put tensors of each layer into one, as other programs save them."""
    safetensors = pytest.importorskip("safetensors.numpy")
    path = folder / "model.safetensors"
    weights = safetensors.load_file(path)
    for name in [name for name in weights if parts[0] in name]:
        values = [weights.pop(name.replace(parts[0], part)) for part in parts]
        weights[name.replace(parts[0], whole)] = np.concatenate(values)
    safetensors.save_file(weights, path, {"format": "pt"})


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_tensors_that_a_checkpoint_has_in_one(architecture: str, tmp_path: Path) -> None:
    """Llama's queries and keys are reordered, and Qwen2 has biases: these are cut from the one tensor."""
    bias = {"attention_bias": True, "mlp_bias": True} if architecture == "LlamaForCausalLM" else {}
    folder = make_tiny(architecture, tmp_path / "hf", **bias)
    expected = load_logits(convert(folder, tmp_path / "plain.gguf", "f32"))
    join(folder, "qkv_proj", "q_proj", "k_proj", "v_proj")
    join(folder, "gate_up_proj", "gate_proj", "up_proj")
    path = convert(folder, tmp_path / "joined.gguf", "f32")
    assert ("blk.0.attn_qkv.weight" in tensors(path)) == (architecture == "Qwen3ForCausalLM")
    assert ("blk.0.ffn_gate.weight" in tensors(path)) == (architecture == "LlamaForCausalLM")
    assert np.abs(load_logits(path) - expected).max() <= 1e-5 * np.abs(expected).max()


def load_logits(path: Path) -> np.ndarray:
    with load(path, "reference") as model:
        return model.logits(list(range(2, 20)))
