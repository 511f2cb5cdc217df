"""Rows of mixtures of experts."""

from __future__ import annotations

from typing import Any

from tests.families.dense import YARN
from tests.families.row import Row

_MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}

ROWS: dict[str, Row] = {
    "mixtral": Row("MixtralForCausalLM", "llama", {"head_dim": 24, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3moe": Row(
        "Qwen3MoeForCausalLM",
        "qwen3moe",
        {
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "deepseek-v2": Row(
        "DeepseekV2ForCausalLM",
        "deepseek2",
        _MLA
        | {"q_lora_rank": 16, "n_routed_experts": 8, "n_shared_experts": 2, "routed_scaling_factor": 3.0}
        | {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"},
        llamacpp="it ranks groups of experts by their best two, as V3 does; V2 ranks them by the best one",
        excused={"kv heads": "all heads read one latent"},
    ),
    "deepseek-v2-lite": Row(
        "DeepseekV2ForCausalLM",
        "deepseek2",
        _MLA | {"q_lora_rank": None, "n_routed_experts": 4, "n_shared_experts": 2, "n_group": 1, "topk_group": 1},
        llamacpp="it takes one matrix for the queries only in models of 27 layers",
        excused={"kv heads": "all heads read one latent"},
    ),
    "deepseek-v3": Row(
        "DeepseekV3ForCausalLM",
        "deepseek2",
        _MLA
        | {"q_lora_rank": 16, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2}
        | {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "norm_topk_prob": True}
        | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        n_tokens=60,
        excused={"kv heads": "all heads read one latent"},
    ),
}
