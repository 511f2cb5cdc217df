"""Rows of Gemma."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy as safetensors

from tests.families.row import COMMON, Row

GEMMA4 = {
    "rms_norm_eps": 1e-3,
    "head_dim": 24,
    "global_head_dim": 32,
    "sliding_window": 8,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 0,
    "final_logit_softcapping": 30.0,
}
GEMMA4_FILE: dict[str, Any] = {
    "cut": ("token_embd.weight",),
    # without values, keys are values
    "optional": ("blk.*.layer_output_scale.weight", "blk.*.attn_v.weight"),
    "llamacpp_bound": 3e-4,  # GELU
}


def _with_vision(folder: Path) -> None:
    """Make the folder that of a model which also reads images, whose config.json leaves out defaults."""
    config = json.loads((folder / "config.json").read_text()) | {"architectures": None}
    for name in ("head_dim", "num_key_value_heads", "num_attention_heads", "query_pre_attn_scalar", "rms_norm_eps"):
        del config[name]
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": config}
    (folder / "config.json").write_text(json.dumps(whole))
    weights = safetensors.load_file(folder / "model.safetensors")
    weights = {f"language_model.{name}": value for name, value in weights.items()}
    weights["vision_tower.vision_model.post_layernorm.weight"] = np.ones(8, np.float32)
    safetensors.save_file(weights, folder / "model.safetensors", {"format": "pt"})


ROWS: dict[str, Row] = {
    "gemma": Row("GemmaForCausalLM", "gemma", {"head_dim": 32, "rms_norm_eps": 0.1}, llamacpp_bound=1e-4),
    "gemma2": Row(
        "Gemma2ForCausalLM",
        "gemma2",
        {"head_dim": 32, "sliding_window": 8, "query_pre_attn_scalar": 32, "rms_norm_eps": 1e-3},
        llamacpp_bound=1e-4,  # GELU
    ),
    # the small models: vectors for each layer, and layers that read the keys and values of earlier ones
    "gemma4": Row(
        "Gemma4ForCausalLM",
        "gemma4",
        GEMMA4
        | {
            "num_hidden_layers": 8,
            # llama.cpp expects that the last two layers with keys of their own are one of each kind, in this order
            "layer_types": [f"{kind}_attention" for kind in "sliding full sliding sliding full".split()]
            + [f"{kind}_attention" for kind in "sliding sliding full".split()],
            "num_kv_shared_layers": 3,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": COMMON["vocab_size"],
            "use_double_wide_mlp": True,
        },
        **GEMMA4_FILE,
    ),
    # the large ones: values are keys in full layers
    "gemma4-dense": Row(
        "Gemma4ForCausalLM",
        "gemma4",
        GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1},
        **GEMMA4_FILE,
    ),
    "gemma4-experts": Row(
        "Gemma4ForCausalLM",
        "gemma4",
        GEMMA4
        | {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "enable_moe_block": True}
        | {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24},
        **GEMMA4_FILE,
    ),
    "gemma3": Row(
        "Gemma3ForCausalLM",
        "gemma3",
        {"head_dim": 32, "sliding_window": 8, "num_hidden_layers": 7, "query_pre_attn_scalar": 32}
        | {"rms_norm_eps": 1e-3},
        cut=("token_embd.weight",),
        llamacpp_bound=1e-4,  # GELU
    ),
    "gemma3-vision": Row(
        "Gemma3ForCausalLM",
        "gemma3",
        {
            "head_dim": 256,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "sliding_window": 8,
            "num_hidden_layers": 7,
            "rms_norm_eps": 1e-6,
        },
        prepare=_with_vision,
        excused={"epsilon": "config.json leaves it out; gemma3 has one that shows"},
        cut=("token_embd.weight",),
        llamacpp_bound=3e-4,  # GELU
    ),
    "gemma3n": Row(
        "Gemma3nForCausalLM",
        "gemma3n",
        {
            "rms_norm_eps": 1e-3,
            "head_dim": 24,
            "sliding_window": 8,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": COMMON["vocab_size"],
            "laurel_rank": 12,
            "activation_sparsity_pattern": [0.75, 0.5, 0.0, 0.0, 0.0, 0.0],
        },
        llamacpp="it fixes which layers have keys of their own, the size of each layer's vectors, and limits of gates",
    ),
}
