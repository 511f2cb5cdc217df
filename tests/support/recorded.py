"""The tiny models whose files by llama.cpp's converter are in tests/data/llamacpp, made anew and always the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_bert import make_tiny_bert, random_reranker, write_sentence_modules
from tests.support.tiny_text import ARCHITECTURES, MORE_ARCHITECTURES, end_texts_with, make_tiny

__all__ = ["MODELS", "make_recorded"]

_SMALLER: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
_YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
_CHANGES: dict[str, dict[str, Any]] = {
    "Gemma3ForCausalLM": {"num_hidden_layers": 6},  # the last of six is global
    "MixtralForCausalLM": {"intermediate_size": 48},
    "DeepseekV3ForCausalLM": {"rope_parameters": _YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    "Mamba2ForCausalLM": {"num_heads": 4},
    "Lfm2ForCausalLM": {"num_hidden_layers": 3},
}


def make_recorded(name: str, folder: Path) -> Path:
    """Writes the Hugging Face folder of one of MODELS. Skips the test where torch or transformers is missing."""
    return MODELS[name](folder)


def _causal(architecture: str) -> Callable[[Path], Path]:
    return lambda folder: make_tiny(architecture, folder, **_SMALLER | _CHANGES.get(architecture, {}))


def _embedding(folder: Path) -> Path:
    """A decoder as Qwen3 Embedding is published: no head, names without "model.", and a text ends with another token
    than a turn does."""
    safetensors = pytest.importorskip("safetensors.numpy")
    make_tiny("Qwen3ForCausalLM", folder, **_SMALLER, tie_word_embeddings=True)
    weights = safetensors.load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): value for name, value in weights.items()}
    safetensors.save_file(bare, folder / "model.safetensors", {"format": "pt"})
    end_texts_with(folder, "<|odd|>")
    write_sentence_modules(folder, 32, "lasttoken", max_seq_length=128)
    return folder


def _reranker(folder: Path) -> Path:
    config = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    return make_tiny_bert(folder, config=config, weights=random_reranker(), sentence=False)


MODELS: dict[str, Callable[[Path], Path]] = {
    **{name: _causal(name) for name in (*ARCHITECTURES, *MORE_ARCHITECTURES)},
    "Qwen3Embedding": _embedding,
    "BertForSequenceClassification": _reranker,
}
