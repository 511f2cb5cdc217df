"""Rows of models with Mamba, and with attention in other layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.hybrids import RECURRENT
from tests.families.row import Row, coarse

Array = np.ndarray[Any, Any]

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


_GRANITE = {
    "rms_norm_eps": 1e-3,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "intermediate_size": 24,
    "shared_intermediate_size": 40,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.3,
    "logits_scaling": 2.0,
}


_GRANITE_4 = _GRANITE | {"layer_types": ["full_attention"] * 4, "position_embedding_type": "rope"}


def _with_published_names(folder: Path) -> None:
    """transformers 5 writes other names of layers than Granite's checkpoints and llama.cpp's converter have."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    names = {"linear_attention": "mamba", "full_attention": "attention"}
    path.write_text(json.dumps(config | {"layer_types": [names[kind] for kind in config["layer_types"]]}))


_FALCON = {
    "rms_norm_eps": 1e-3,
    "head_dim": 24,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_ssm": 128,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "embedding_multiplier": 3.0,
    "lm_head_multiplier": 0.5,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.8,
    "key_multiplier": 0.7,
    "ssm_in_multiplier": 1.1,
    "ssm_out_multiplier": 0.6,
    "ssm_multipliers": [0.9, 1.2, 0.8, 1.3, 0.7],
    "mlp_multipliers": [0.9, 0.7],
}


def _quarters(weights: Array) -> Array:
    """As ``coarse``, for tensors so large that torch computes exp with vectors."""
    return np.round(weights * 8) / 4


_MAMBA = {
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "max_position_embeddings"), ...),
    "intermediate_size": 128,
    "state_size": 16,
    "time_step_rank": 6,
}


ROWS: dict[str, Row] = {
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
    "granitehybrid": Row(
        "GraniteMoeHybridForCausalLM",
        "granitehybrid",
        _GRANITE,
        prepare=_with_published_names,
        weights={"A_log": coarse},
        no_shift=RECURRENT,
    ),
    "granitehybrid-dense": Row(
        "GraniteMoeHybridForCausalLM",
        "granitehybrid",
        _GRANITE | {"num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": 40},
        prepare=_with_published_names,
        weights={"A_log": coarse},
        no_shift=RECURRENT,
    ),
    "granite-4": Row(
        "GraniteMoeHybridForCausalLM",
        "granite",
        _GRANITE_4 | {"num_local_experts": 0, "num_experts_per_tok": 0, "intermediate_size": 40},
        prepare=_with_published_names,
    ),
    "granitemoe-4": Row("GraniteMoeHybridForCausalLM", "granitemoe", _GRANITE_4, prepare=_with_published_names),
    "falcon-h1": Row(
        "FalconH1ForCausalLM",
        "falcon-h1",
        _FALCON,
        weights={"A_log": coarse},
        no_shift=RECURRENT,
    ),
    "falcon-h1-normed": Row(
        "FalconH1ForCausalLM",
        "falcon-h1",
        _FALCON | {"mamba_rms_norm": True, "mamba_norm_before_gate": False},
        weights={"A_log": coarse},
        no_shift=RECURRENT,
        optional=("*.ssm_norm.weight",),
    ),
    "mamba": Row("MambaForCausalLM", "mamba", _MAMBA, weights={"A_log": _quarters}, no_shift=RECURRENT),
    # llama.cpp normalises B, C and the time steps with epsilon 1e-5, that of the other norms; checkpoints have 1e-6
    "falcon-mamba": Row("FalconMambaForCausalLM", "mamba", _MAMBA, weights={"A_log": _quarters}, no_shift=RECURRENT),
    "jamba": Row(
        "JambaForCausalLM",
        "jamba",
        {"expert_layer_offset": 0, "attn_layer_period": 3, "attn_layer_offset": 1, "num_experts": 4}
        | {"num_experts_per_tok": 2, "mamba_d_state": 8, "mamba_dt_rank": 6, "rms_norm_eps": 1e-3},
        weights={"A_log": _quarters},
        n_tokens=17,
        no_shift=RECURRENT,
    ),
}
