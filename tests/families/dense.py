"""Rows of dense decoders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import safetensors.numpy as safetensors

from tests.families.row import Row

YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_theta": 1e4,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

MINISTRAL = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "max_position_embeddings": 256}


def _with_vision(folder: Path) -> None:
    """Make the folder that of a model which also reads images, without most of its vision encoder."""
    config = json.loads((folder / "config.json").read_text()) | {"architectures": None}
    whole = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": config}
    (folder / "config.json").write_text(json.dumps(whole))
    weights = safetensors.load_file(folder / "model.safetensors")
    weights = {f"language_model.{name}": value for name, value in weights.items()}
    others = ("vision_tower.ln_pre.weight", "multi_modal_projector.norm.weight")
    weights |= dict.fromkeys(others, np.ones(8, np.float32))
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})


ROWS: dict[str, Row] = {
    "mistral-small-3.1": Row(
        "MistralForCausalLM", "mistral3", {"head_dim": 24, "sliding_window": None}, prepare=_with_vision
    ),
    "ministral3": Row("Ministral3ForCausalLM", "mistral3", {"head_dim": 24, "rope_parameters": MINISTRAL}, n_tokens=60),
    "llama": Row("LlamaForCausalLM", "llama", {"head_dim": 24}),
    "llama-3.1": Row(
        "LlamaForCausalLM",
        "llama",
        {"head_dim": 24, "rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": Row("MistralForCausalLM", "llama", {"head_dim": 24, "sliding_window": None}),
    "qwen2": Row("Qwen2ForCausalLM", "qwen2"),
    "qwen2-yarn": Row("Qwen2ForCausalLM", "qwen2", {"rope_parameters": YARN}),
    "qwen3": Row("Qwen3ForCausalLM", "qwen3", {"head_dim": 32}),
    "qwen3-tied": Row("Qwen3ForCausalLM", "qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "phi3": Row("Phi3ForCausalLM", "phi3", {"original_max_position_embeddings": 256, "sliding_window": None}),
}
