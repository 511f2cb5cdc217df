"""Rows of GPT-2's relatives: LayerNorms, biases, and MLPs without a gate."""

from __future__ import annotations

from tests.families.row import Row, stating

_GELU = 6e-4  # llama.cpp's GELU is a table of F16
_GPT2 = {
    "hidden_size": ...,
    "intermediate_size": ...,
    "num_hidden_layers": ...,
    "num_attention_heads": ...,
    "num_key_value_heads": ...,
    "max_position_embeddings": ...,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "layer_norm_epsilon": 1e-3,
}

_LEARNED = "shiftable is False"

ROWS: dict[str, Row] = {
    "starcoder2": Row("Starcoder2ForCausalLM", "starcoder2", {"norm_epsilon": 1e-3}, llamacpp_bound=_GELU),
    "gpt2": Row("GPT2LMHeadModel", "gpt2", _GPT2, prepare=stating(n_ctx=256), no_shift=_LEARNED, llamacpp_bound=_GELU),
    "starcoder": Row("GPTBigCodeForCausalLM", "starcoder", _GPT2, no_shift=_LEARNED, llamacpp_bound=_GELU),
    "gptneox": Row(
        "GPTNeoXForCausalLM",
        "gptneox",
        {"layer_norm_eps": 1e-3},
        prepare=stating(rotary_pct=0.25),
        llamacpp_bound=1e-3,
    ),
    "gptneox-sequential": Row(
        "GPTNeoXForCausalLM",
        "gptneox",
        {"layer_norm_eps": 1e-3, "use_parallel_residual": False, "rotary_pct": 0.5},
        prepare=stating(rotary_pct=0.5),
        llamacpp_bound=1e-3,
    ),
    "bloom": Row(
        "tests.families.bloom:BloomForCausalLM",
        "bloom",
        dict.fromkeys(("intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"), ...)
        | {"n_layer": 3, "n_head": 6, "hidden_size": 96, "layer_norm_epsilon": 1e-3, "seq_length": 256},
        llamacpp_bound=_GELU,
    ),
    "nemotron": Row(
        "NemotronForCausalLM",
        "nemotron",
        {"norm_eps": 1e-3},
        excused={"head_dim": "llama.cpp's converter computes it from hidden_size, as it is in published models"},
    ),
    "mpt": Row(
        "MptForCausalLM",
        "mpt",
        dict.fromkeys(_GPT2, ...)
        | {"d_model": 96, "n_heads": 6, "n_layers": 3, "max_seq_len": 256}
        | {"attn_config": {"clip_qkv": 2.0, "alibi_bias_max": 8}},
        prepare=stating(architectures=["MPTForCausalLM"]),
        llamacpp_bound=1e-3,
    ),
}
