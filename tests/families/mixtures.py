"""Rows of mixtures of experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.families.checkpoints import renamed, save
from tests.families.dense import LLAMA3, MINISTRAL, YARN
from tests.families.hybrids import RECURRENT
from tests.families.row import Row, stating
from tests.support.tiny_bert import edit_json
from tests.support.tiny_text import MLA

_FEW: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_GPT_OSS: dict[str, Any] = {
    "head_dim": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "num_hidden_layers": 4,
}
_GPT_OSS_YARN = YARN | {"factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0}
_GLM: dict[str, Any] = _FEW | {
    "head_dim": 32,
    "n_routed_experts": 4,
    "attention_bias": True,
    "num_nextn_predict_layers": 0,
}
_LLAMA4: dict[str, Any] = {
    "head_dim": 24,
    "num_hidden_layers": 6,
    "intermediate_size_mlp": 80,
    "num_local_experts": 4,
    "rope_parameters": LLAMA3,
}
_LAGUNA: dict[str, Any] = _FEW | {
    "head_dim": 32,
    "num_experts": 4,
    "shared_expert_intermediate_size": 48,
    "moe_routed_scaling_factor": 2.5,
}
_PLAIN_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 1.0}
_ERNIE: dict[str, Any] = {
    "moe_num_experts": 4,
    "moe_k": 2,
    "moe_num_shared_experts": 2,
    "moe_intermediate_size": 24,  # for llama.cpp's converter, the shared ones have intermediate_size / kv heads
    "tie_word_embeddings": False,
}
_GRANITE: dict[str, Any] = {
    "rms_norm_eps": 1e-3,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 4.0,
}

_DSA: dict[str, Any] = {
    **MLA,
    "q_lora_rank": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "index_topk": 256,
    "index_head_dim": 64,
    "index_n_heads": 4,
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"},
}

_MELLUM = {
    "head_dim": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "rms_norm_eps": 1e-3,
}
_MELLUM |= {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

_COHERE: dict[str, Any] = {
    "head_dim": 24,
    "logit_scale": 0.25,
    "num_hidden_layers": 6,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"] * 2,
    "mlp_layer_types": ["dense", *["sparse"] * 5],
    "sliding_window": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "prefix_dense_intermediate_size": 48,
}

_MIMO: dict[str, Any] = {
    "head_dim": 24,
    "v_head_dim": 12,
    "num_key_value_heads": 1,
    "num_hidden_layers": 7,
    "sliding_window": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-3,
    "attention_value_scale": 0.7,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
}


def _as_mimo(folder: Path) -> None:
    kinds = json.loads((folder / "config.json").read_text())["layer_types"]
    more = {
        "hybrid_layer_pattern": [int(kind == "sliding_attention") for kind in kinds],
        "moe_layer_freq": [0] + [1] * 6,
        "topk_method": "noaux_tc",
        "swa_num_key_value_heads": 2,
        "swa_num_attention_heads": 4,
        "swa_head_dim": 24,
        "swa_v_head_dim": 12,
        "rope_theta": 1e5,
        "swa_rope_theta": 1e4,
        "partial_rotary_factor": 0.5,
        "scoring_func": "sigmoid",
    }
    more |= dict.fromkeys(("rope_parameters", "layer_types", "mlp_layer_types", "model_type"))
    names = {"self_attn.sinks": "self_attn.attention_sink_bias"}
    save(renamed(folder, {"rms_norm_eps": "layernorm_epsilon"}, names, **more), folder)


def _mellum_rope(base: float) -> dict[str, Any]:
    yarn = {"rope_theta": base, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    return {"full_attention": yarn, "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}}


ROWS: dict[str, Row] = {
    "deepseek-v3.2": Row(
        "DeepseekV32ForCausalLM",
        "deepseek32",
        _DSA | {"n_group": 4, "topk_group": 2},
        n_tokens=60,
        keys={"deepseek32.expert_gating_func": 2},  # llama.cpp's reader requires it, but config.json may lack it
        unused=("*.indexer.*",),  # it chooses all tokens of short texts
        optional=("blk.*.indexer.*",),
        excused={"kv heads": "all heads read one latent"},
    ),
    "glm-5": Row(
        "GlmMoeDsaForCausalLM",
        "glm-dsa",
        # transformers takes 1e-6 in two norms, whatever config.json says
        _DSA | {"indexer_types": ["full", "shared", "full"], "rms_norm_eps": 1e-6},
        n_tokens=60,
        keys={"glm-dsa.expert_gating_func": 2},  # llama.cpp's reader knows it for this architecture
        unused=("*.indexer.*",),
        optional=("blk.*.indexer.*",),
        excused={"kv heads": "all heads read one latent"},
    ),
    "mistral4": Row(
        "Mistral4ForCausalLM",
        "mistral4",
        MLA
        | {"q_lora_rank": 16, "n_routed_experts": 8, "n_shared_experts": 1, "norm_topk_prob": True}
        | {"rope_parameters": MINISTRAL | {"partial_rotary_factor": 8 / 24}},
        n_tokens=60,
        # llama.cpp's converter knows no text model of that name
        prepare=lambda folder: edit_json(folder, "config.json", architectures=["Mistral3ForConditionalGeneration"]),
        # llama.cpp's converter forgets the scaling of queries by position, which its reader knows
        keys={
            "mistral4.attention.temperature_scale": float(np.float32(0.1)),
            "mistral4.attention.temperature_length": 16,
        },
        excused={"kv heads": "all heads read one latent"},
    ),
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
        MLA
        | {"q_lora_rank": 16, "n_routed_experts": 8, "n_shared_experts": 2, "routed_scaling_factor": 3.0}
        | {"n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy"},
        llamacpp="it ranks groups of experts by their best two, as V3 does; V2 ranks them by the best one",
        excused={"kv heads": "all heads read one latent"},
    ),
    "deepseek-v2-lite": Row(
        "DeepseekV2ForCausalLM",
        "deepseek2",
        MLA
        | {"q_lora_rank": None, "n_routed_experts": 4, "n_shared_experts": 2, "n_group": 1, "topk_group": 1}
        | {"first_k_dense_replace": 0, "routed_scaling_factor": 3.0}
        | {"rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}},
        llamacpp="it takes one matrix for the queries only in models of 27 layers",
        excused={"kv heads": "all heads read one latent"},
    ),
    "deepseek-v3-one-query-matrix": Row(
        "DeepseekV3ForCausalLM",
        "deepseek2",
        MLA
        | {"q_lora_rank": None, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
        | {"norm_topk_prob": False, "scoring_func": "sigmoid", "rope_parameters": YARN},
        n_tokens=60,
        llamacpp="it takes one matrix for the queries only in models of 27 layers",
        excused={"kv heads": "all heads read one latent"},
    ),
    "deepseek-v3": Row(
        "DeepseekV3ForCausalLM",
        "deepseek2",
        MLA
        | {"q_lora_rank": 16, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2}
        | {"scoring_func": "sigmoid", "routed_scaling_factor": 2.5, "norm_topk_prob": True}
        | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        n_tokens=60,
        excused={"kv heads": "all heads read one latent"},
    ),
    "glm-4.7-flash": Row(
        "Glm4MoeLiteForCausalLM",
        "deepseek2",
        MLA
        | {"q_lora_rank": 16, "n_routed_experts": 8, "n_shared_experts": 1, "n_group": 4, "topk_group": 2}
        # transformers takes 1e-6 in two norms, whatever config.json says
        | {"routed_scaling_factor": 1.8, "norm_topk_prob": True, "rms_norm_eps": 1e-6},
        n_tokens=60,
        prepare=stating(first_k_dense_replace=1),
        keys={"deepseek2.expert_gating_func": 2},  # theirs goes by the number of layers and tokens
        excused={"kv heads": "all heads read one latent"},
    ),
    "youtu": Row(  # without experts
        "YoutuForCausalLM",
        "deepseek2",
        {name: MLA[name] for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")}
        | {"num_key_value_heads": 4, "q_lora_rank": 16, "tie_word_embeddings": True, "rms_norm_eps": 1e-6},
        n_tokens=32,
        excused={"kv heads": "all heads read one latent"},
    ),
    "gpt-oss": Row(
        "GptOssForCausalLM",
        "gpt-oss",
        _GPT_OSS | {"rope_parameters": _GPT_OSS_YARN | {"truncate": False}},
        n_tokens=32,
        weights={"experts.down_proj": lambda w: w / 2},
        llamacpp="it rounds the ends of YaRN's ramp, and its converter drops `truncate`",
    ),
    "gpt-oss-rounded": Row(
        "GptOssForCausalLM",
        "gpt-oss",
        _GPT_OSS | {"rope_parameters": _GPT_OSS_YARN | {"truncate": True}},
        n_tokens=32,
        weights={"experts.down_proj": lambda w: w / 2},
    ),
    "glm4moe": Row(
        "Glm4MoeForCausalLM",
        "glm4moe",
        _GLM | {"use_qk_norm": True, "n_shared_experts": 1, "routed_scaling_factor": 2.5},
        n_tokens=32,
        optional=("*.attn_q_norm.weight", "*.attn_k_norm.weight"),
    ),
    "glm4moe-air": Row(
        "Glm4MoeForCausalLM", "glm4moe", _GLM | {"n_shared_experts": 2, "first_k_dense_replace": 2}, n_tokens=32
    ),
    "solar-open": Row(
        "SolarOpenForCausalLM",
        "glm4moe",
        _FEW | {"head_dim": 32, "n_routed_experts": 4, "n_shared_experts": 1, "routed_scaling_factor": 2.5},
        n_tokens=32,
        prepare=stating(first_k_dense_replace=0, partial_rotary_factor=1.0),
    ),
    "granitemoe": Row("GraniteMoeForCausalLM", "granitemoe", _GRANITE),
    "granitemoe-shared": Row("GraniteMoeSharedForCausalLM", "granitemoe", _GRANITE | {"shared_intermediate_size": 48}),
    "laguna": Row(
        "LagunaForCausalLM",
        "laguna",
        _LAGUNA
        | {"num_hidden_layers": 6, "sliding_window": 8}
        | {"layer_types": ["full_attention" if i % 4 == 0 else "sliding_attention" for i in range(6)]}
        | {"num_attention_heads_per_layer": [4 if i % 4 == 0 else 6 for i in range(6)]}
        | {
            "rope_parameters": {
                "full_attention": YARN | {"partial_rotary_factor": 0.5},
                "sliding_attention": _PLAIN_ROPE,
            }
        },
        n_tokens=32,
        weights={"experts.down_proj": lambda w: w / 2},
    ),
    "laguna-full": Row(  # a gate for each element, and no window
        "LagunaForCausalLM",
        "laguna",
        _LAGUNA
        | {"gating": "per-element", "mlp_layer_types": ["dense", "dense", "sparse"], "sliding_window": 0}
        | {"layer_types": ["full_attention"] * 3}
        | {"rope_parameters": {"full_attention": _PLAIN_ROPE | {"partial_rotary_factor": 0.5}}},
        n_tokens=32,
    ),
    "lfm2moe": Row(
        "Lfm2MoeForCausalLM",
        "lfm2moe",
        _FEW
        | {"layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"], "num_hidden_layers": 5}
        | {"num_dense_layers": 2, "num_experts": 4, "conv_L_cache": 3},
        n_tokens=32,
        no_shift=RECURRENT,
    ),
    "dots1": Row(
        "Dots1ForCausalLM",
        "dots1",
        _FEW
        | {"num_key_value_heads": 4, "n_routed_experts": 4, "n_shared_experts": 2, "first_k_dense_replace": 1}
        | {"norm_topk_prob": True, "routed_scaling_factor": 2.5, "sliding_window": None, "scoring_func": "sigmoid"},
        n_tokens=32,
        excused={"kv heads": "llama.cpp loads no model with fewer heads of keys than of queries"},
    ),
    "minimax-m2": Row(
        "MiniMaxM2ForCausalLM",
        "minimax-m2",
        {"head_dim": 32, "num_local_experts": 4, "num_experts_per_tok": 2, "rotary_dim": 16, "scoring_func": "sigmoid"}
        | {"rms_norm_eps": 1e-3},
        n_tokens=60,
        weights={"experts.down_proj": lambda w: w / 2},
    ),
    "olmoe": Row(
        "OlmoeForCausalLM",
        "olmoe",
        {"num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2},
        n_tokens=32,
        excused={"kv heads": "llama.cpp loads no model with fewer heads of keys than of queries"},
    ),
    "afmoe": Row(
        "AfmoeForCausalLM",
        "afmoe",
        _FEW
        | {"head_dim": 32, "num_hidden_layers": 6, "sliding_window": 8, "num_experts": 4, "num_shared_experts": 2}
        | {
            "num_dense_layers": 2,
            "route_scale": 2.8,
            "mup_enabled": True,
            "rms_norm_eps": 1e-3,
            "score_func": "sigmoid",
            "route_norm": True,
        },
        n_tokens=32,
    ),
    "ernie4_5-moe": Row(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5-moe",
        _ERNIE | {"moe_layer_start_index": 1},
        n_tokens=60,
        weights={"correction_bias": lambda w: w / 4},
    ),
    "ernie4_5-moe-step": Row(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5-moe",
        _ERNIE | {"num_hidden_layers": 6, "moe_layer_start_index": 2, "moe_layer_interval": 2},
        n_tokens=60,
        weights={"experts.down_proj": lambda w: w / 2, "correction_bias": lambda w: w / 4},
        llamacpp="it cannot load the file: it expects experts in all layers after the dense ones",
    ),
    "hunyuan-moe": Row(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan-moe",
        {"head_dim": 32, "num_experts": 4, "moe_topk": [2] * 3}
        | {"moe_intermediate_size": [96] * 3, "num_shared_expert": [1] * 3},
        n_tokens=32,
        no_shift="shiftable",
    ),
    "hy_v3": Row(
        "HYV3ForCausalLM",
        "hy_v3",
        _FEW | {"head_dim": 32, "num_experts": 4, "num_shared_experts": 2, "router_scaling_factor": 2.5},
        n_tokens=32,
    ),
    "qwen2moe": Row(
        "Qwen2MoeForCausalLM", "qwen2moe", _FEW | {"num_experts": 4, "shared_expert_intermediate_size": 48}, n_tokens=32
    ),
    "llama4": Row(
        "Llama4ForCausalLM",
        "llama4",
        _LLAMA4 | {"num_experts_per_tok": 1, "interleave_moe_layer_step": 2},
        n_tokens=32,
        no_shift="attends within chunks",
        excused={"window": "readers take 8192, whatever a file says; llama4-chunks has a short one"},
    ),
    "llama4-chunks": Row(
        "Llama4ForCausalLM",
        "llama4",
        _LLAMA4 | {"num_experts_per_tok": 2, "attention_chunk_size": 8, "floor_scale": 6, "attn_scale": 0.3},
        n_tokens=32,
        no_shift="attends within chunks",
        # llama.cpp has these numbers in its code
        keys={
            "llama4.attention.chunk_size": 8,
            "llama4.attention.temperature_length": 6,
            "llama4.attention.temperature_scale": float(np.float32(0.3)),
        },
        llamacpp="its chunks and its temperature are those of the published models",
    ),
    "cohere2moe": Row(
        "Cohere2MoeForCausalLM",
        "cohere2moe",
        _COHERE | {"layer_norm_eps": 1e-3, "expert_selection_fn": "sigmoid", "num_shared_experts": 2},
        n_tokens=32,
    ),
    "cohere2moe-rms": Row(
        "Cohere2MoeForCausalLM",
        "cohere2moe",
        _COHERE | {"rms_norm_eps": 1e-3, "layer_norm_eps": ...},
        n_tokens=32,
        keys={"cohere2moe.attention.layer_norm_epsilon": None},  # theirs writes both
    ),
    "mimo2": Row(
        "MiMoV2FlashForCausalLM",
        "mimo2",
        _MIMO,
        n_tokens=60,
        weights={"experts.down_proj": lambda w: w / 2},
        prepare=_as_mimo,
    ),
    "mellum": Row("MellumForCausalLM", "mellum", _MELLUM | {"rope_parameters": _mellum_rope(1e4)}),
    "mellum-two-bases": Row(
        "MellumForCausalLM",
        "mellum",
        _MELLUM | {"rope_parameters": _mellum_rope(5e5)},
        llamacpp="it rotates layers with a window by the base of the others",
    ),
    "exaone-moe": Row(
        "ExaoneMoeForCausalLM",
        "exaone-moe",
        {"head_dim": 24, "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "sliding_window": 6}
        | {"num_hidden_layers": 5, "num_shared_experts": 2},
        n_tokens=32,
        prepare=stating(architectures=["ExaoneMoEForCausalLM"], scoring_func="sigmoid"),
    ),
    "dbrx": Row(
        "DbrxForCausalLM",
        "dbrx",
        dict.fromkeys(("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"), ...)
        | dict.fromkeys(("num_key_value_heads", "max_position_embeddings"), ...)
        | {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 256}
        | {"attn_config": {"clip_qkv": 2.0, "kv_n_heads": 2, "rope_theta": 5e5}}
        | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
        | {"ffn_config": {"ffn_hidden_size": 40, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64}},
    ),
}
