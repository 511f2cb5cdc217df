"""Rows of recurrent models, and of models that mix recurrent layers with attention."""

from __future__ import annotations

from tests.families.row import Row, coarse

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
}
