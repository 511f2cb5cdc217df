"""Rows of recurrent models, and of models that mix recurrent layers with attention."""

from __future__ import annotations

import json
from pathlib import Path

from tests.families.row import Row, coarse
from tests.support.tiny_bert import write_safetensors
from tests.support.tiny_text import state_dict

RECURRENT = "recurrent state"

_DELTA = {
    "head_dim": 32,
    "num_hidden_layers": 5,  # every fourth layer has attention
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}
# The result of a head is normalised: it would be noise if its query and key were nearly at right angles. Larger inputs
# of SiLU make both positive.
DELTA_WEIGHTS = {
    "A_log": coarse,
    "linear_attn.conv1d.weight": lambda w: 3 * w,
    "linear_attn.out_proj.weight": lambda w: w / 3,
}
_EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
}
_PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_SECTIONS = {"rope_parameters": _PARTIAL | {"mrope_section": [3, 3, 2], "mrope_interleaved": True}}


def _as_published(folder: Path) -> None:
    """Write what Kimi's checkpoints have and transformers does not write: settings, and the names of dense layers."""
    weights = state_dict(folder)
    for name in list(weights):
        if name.endswith(("block_sparse_moe.gate_proj.weight", "moe.up_proj.weight", "moe.down_proj.weight")):
            weights[name.replace("block_sparse_moe", "mlp")] = weights.pop(name)
        elif name.endswith("mlp.gate.e_score_correction_bias"):
            weights[name.replace("mlp", "block_sparse_moe")] = weights.pop(name)
    write_safetensors(folder / "model.safetensors", weights)
    config = json.loads((folder / "config.json").read_text())
    kinds, mlps = config.pop("layer_types"), config.pop("mlp_layer_types")
    config |= {
        "linear_attn_config": {
            "full_attn_layers": [i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"],
            "kda_layers": [i + 1 for i, kind in enumerate(kinds) if kind == "linear_attention"],
            "num_heads": config.pop("linear_num_heads"),
            "head_dim": config.pop("linear_head_dim"),
            "short_conv_kernel_size": config.pop("linear_conv_kernel_dim"),
        },
        "first_k_dense_replace": mlps.count("dense"),
        "moe_router_activation_func": "sigmoid",
        "moe_layer_freq": 1,
        "mla_use_nope": True,
        "rope_theta": 10000.0,
    }
    (folder / "config.json").write_text(json.dumps(config))


ROWS: dict[str, Row] = {
    "mamba2": Row(
        "Mamba2ForCausalLM",
        "mamba2",
        {
            "num_attention_heads": ...,
            "num_key_value_heads": ...,
            "intermediate_size": ...,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 2,
            "expand": 2,
            "conv_kernel": 4,
        },
        weights={"A_log": coarse},
        no_shift=RECURRENT,
    ),
    "kimi-linear": Row(
        "KimiLinearForCausalLM",
        "kimi-linear",
        {
            "num_key_value_heads": 4,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 12,
            "kv_lora_rank": 24,
            "linear_head_dim": 16,
            "linear_num_heads": 4,
            "linear_conv_kernel_dim": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "moe_intermediate_size": 32,
            "max_position_embeddings": ...,
            "model_max_length": 256,
        },
        weights={"A_log": coarse},
        prepare=_as_published,
        excused={"kv heads": "all heads share one latent"},
        no_shift=RECURRENT,
    ),
    "lfm2": Row(
        "Lfm2ForCausalLM",
        "lfm2",
        {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 32, "conv_L_cache": 4},
        no_shift=RECURRENT,
    ),
    "qwen35": Row(
        "Qwen3_5ForCausalLM",
        "qwen35",
        _DELTA | _SECTIONS,
        weights=DELTA_WEIGHTS,
        no_shift=RECURRENT,
    ),
    "qwen35moe": Row(
        "Qwen3_5MoeForCausalLM",
        "qwen35moe",
        _DELTA | _SECTIONS | _EXPERTS | {"intermediate_size": ...},
        weights=DELTA_WEIGHTS,
        no_shift=RECURRENT,
    ),
    "qwen3next": Row(
        "Qwen3NextForCausalLM",
        "qwen3next",
        _DELTA | _EXPERTS | {"rope_parameters": _PARTIAL},
        weights=DELTA_WEIGHTS,
        no_shift=RECURRENT,
    ),
    "mamba2-one-group": Row(
        "Mamba2ForCausalLM",
        "mamba2",
        {"num_attention_heads": ..., "num_key_value_heads": ..., "intermediate_size": ..., "num_heads": 8}
        | {"head_dim": 16, "state_size": 16, "n_groups": 1, "expand": 2, "conv_kernel": 4},
        weights={"A_log": coarse},
        no_shift=RECURRENT,
    ),
    "lfm2-attention-at-the-ends": Row(
        "Lfm2ForCausalLM",
        "lfm2",
        {"layer_types": ["full_attention", "conv", "full_attention"], "block_multiple_of": 32, "conv_L_cache": 3},
        no_shift=RECURRENT,
    ),
}
