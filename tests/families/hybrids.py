"""Rows of recurrent models, and of models that mix recurrent layers with attention."""

from __future__ import annotations

from tests.families.row import Row, coarse

RECURRENT = "recurrent state"

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
}
