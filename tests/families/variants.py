"""Rows of dense decoders whose blocks are not those of Llama: other norms, scales, parallel halves, windows."""

from __future__ import annotations

from tests.families.dense import LLAMA3, YARN
from tests.families.row import Row, stating

_WINDOWS = [f"{kind}_attention" for kind in ("sliding", "sliding", "sliding", "full", "sliding")]
_SQUARE = "llama.cpp reads only files in which the heads together are as wide as the hidden state"

_SWA = {
    "rms_norm_eps": 1e-3,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.5,
    "attention_multiplier": 0.2,
    "logits_scaling": 2.0,
    "num_hidden_layers": 6,
    "sliding_window": 8,
    "layer_rope_theta": [1e4, 0, 1e4, 1e4, 0, 1e4],
}

ROWS: dict[str, Row] = {
    "granite": Row(
        "GraniteForCausalLM",
        "granite",
        {
            "rms_norm_eps": 1e-3,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.125,
            "logits_scaling": 2.0,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "granite-swa": Row(
        "GraniteSWAForCausalLM",
        "granite_swa",
        _SWA,
        n_tokens=32,
        prepare=stating(no_rope_layers=[1, 0, 1, 1, 0, 1]),
    ),
    "granite-swa-moe": Row(
        "GraniteMoeSWAForCausalLM",
        "granite_swa",
        _SWA | {"num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
        n_tokens=32,
        prepare=stating(no_rope_layers=[1, 0, 1, 1, 0, 1]),
    ),
    "olmo2": Row("Olmo2ForCausalLM", "olmo2", {"rms_norm_eps": 1e-3}),
    "olmo3": Row(
        "Olmo3ForCausalLM",
        "olmo2",
        {
            "rms_norm_eps": 1e-3,
            "num_hidden_layers": 5,
            "layer_types": _WINDOWS,
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "glm4": Row("Glm4ForCausalLM", "glm4", {"head_dim": 24, "rms_norm_eps": 1e-5}),
    "chatglm": Row(
        "GlmForCausalLM",
        "chatglm",
        {"head_dim": 16, "rms_norm_eps": 1e-5},
        keys={"chatglm.context_length": 256},  # theirs is the hidden size
        excused={"head_dim": _SQUARE},
    ),
    "smollm3": Row("SmolLM3ForCausalLM", "smollm3", {"num_hidden_layers": 5}),
    "command-r": Row("CohereForCausalLM", "command-r", {"logit_scale": 0.25, "layer_norm_eps": 1e-3}),
    "command-r-plus": Row(
        "CohereForCausalLM",
        "command-r",
        {"logit_scale": 0.25, "use_qk_norm": True},
        optional=("blk.*.attn_?_norm.weight",),
        llamacpp="it expects norms of queries and keys in models of 64 layers or more, and in no others",
    ),
    "cohere2": Row(
        "Cohere2ForCausalLM",
        "cohere2",
        {"logit_scale": 0.25, "num_hidden_layers": 5, "layer_types": _WINDOWS, "sliding_window": 8, "rotary_pct": 1.0},
        excused={"head_dim": _SQUARE},
    ),
    "exaone4": Row(
        "Exaone4ForCausalLM",
        "exaone4",
        {"head_dim": 16, "sliding_window": None, "layer_types": ["full_attention"] * 3, "rope_parameters": LLAMA3}
        | {"rms_norm_eps": 1e-3},
        excused={"head_dim": _SQUARE},
    ),
    "exaone4-32b": Row(
        "Exaone4ForCausalLM",
        "exaone4",
        {"head_dim": 24, "sliding_window": 8, "num_hidden_layers": 5, "layer_types": _WINDOWS, "rms_norm_eps": 1e-3},
        llamacpp="it uses windows, and leaves RoPE out of full layers, only if the model has 64 layers",
    ),
    "phi2": Row(
        "PhiForCausalLM",
        "phi2",
        {"num_key_value_heads": 4, "intermediate_size": 256, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
        excused={"kv heads": "Phi has as many key heads as query heads"},
        llamacpp_bound=6e-4,  # GELU
    ),
    "stablelm": Row("StableLmForCausalLM", "stablelm", {"partial_rotary_factor": 0.5, "use_qkv_bias": True}),
    "stablelm-parallel": Row("StableLmForCausalLM", "stablelm", {"use_parallel_residual": True}),
    "falcon": Row(
        "FalconForCausalLM",
        "falcon",
        {"num_key_value_heads": ..., "intermediate_size": ..., "max_position_embeddings": ..., "num_kv_heads": 1}
        | {"layer_norm_epsilon": 1e-3},
        llamacpp_bound=1e-3,  # GELU
        excused={"head_dim": "the config has none"},
    ),
    "falcon-two-norms": Row(
        "FalconForCausalLM",
        "falcon",
        {"num_key_value_heads": ..., "intermediate_size": ..., "max_position_embeddings": ..., "num_kv_heads": 2}
        | {"new_decoder_architecture": True, "layer_norm_epsilon": 1e-3},
        llamacpp_bound=1e-3,  # GELU
        excused={"head_dim": "the config has none"},
    ),
}
