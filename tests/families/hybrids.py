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
_DELTA_WEIGHTS = {
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

_NEMOTRON = {
    "head_dim": 24,
    "mamba_num_heads": 8,
    "mamba_head_dim": 16,
    "ssm_state_size": 16,
    "n_groups": 2,
    "conv_kernel": 4,
    "layer_norm_epsilon": 1e-5,
    "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"] * 2,
    "time_step_min": 1e-30,  # transformers takes larger time steps instead of those below; NVIDIA's own code does not
    "time_step_floor": 1e-30,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
}


def _without_experts(folder: Path) -> None:
    """Nemotron-H as it is published: transformers 5 writes settings of experts that it does not have.

    Without model_type, llama.cpp's converter reads config.json without transformers.
    """
    path = folder / "config.json"
    gone = ("expert", "moe", "routed", "norm_topk", "n_group", "topk_group", "layers_block", "model_type")
    config = {k: v for k, v in json.loads(path.read_text()).items() if k == "n_groups" or not k.startswith(gone)}
    config = {k: v for k, v in config.items() if "expert" not in k}
    path.write_text(json.dumps(config | {"hybrid_override_pattern": "M-*-" * 2, "num_hidden_layers": 8}))


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
        weights=_DELTA_WEIGHTS,
        no_shift=RECURRENT,
    ),
    "qwen35moe": Row(
        "Qwen3_5MoeForCausalLM",
        "qwen35moe",
        _DELTA | _SECTIONS | _EXPERTS | {"intermediate_size": ...},
        weights=_DELTA_WEIGHTS,
        no_shift=RECURRENT,
    ),
    "qwen3next": Row(
        "Qwen3NextForCausalLM",
        "qwen3next",
        _DELTA | _EXPERTS | {"rope_parameters": _PARTIAL},
        weights=_DELTA_WEIGHTS,
        no_shift=RECURRENT,
    ),
    "nemotron_h": Row(
        "NemotronHForCausalLM",
        "nemotron_h",
        _NEMOTRON
        | {"num_hidden_layers": ..., "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"] * 2},
        prepare=_without_experts,
        weights={"A_log": coarse},
        no_shift=RECURRENT,
    ),
    "nemotron_h_moe": Row(
        "NemotronHForCausalLM",
        "nemotron_h_moe",
        _NEMOTRON | {"num_hidden_layers": ...},
        weights={"A_log": coarse},
        no_shift=RECURRENT,
    ),
    "nemotron_h_moe-latent": Row(
        "NemotronHForCausalLM",
        "nemotron_h_moe",
        _NEMOTRON | {"num_hidden_layers": ..., "moe_latent_size": 32},
        weights={"A_log": coarse},
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
