"""Rows of dense decoders."""

from __future__ import annotations

from tests.families.row import Row

YARN = {"rope_theta": 1e4, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_theta": 1e4,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

MINISTRAL = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1, "max_position_embeddings": 256}

ROWS: dict[str, Row] = {
    "ministral3": Row("Ministral3ForCausalLM", "mistral3", {"head_dim": 24, "rope_parameters": MINISTRAL}, n_tokens=60),
    "llama": Row("LlamaForCausalLM", "llama", {"head_dim": 24}),
    "llama-3.1": Row(
        "LlamaForCausalLM",
        "llama",
        {"head_dim": 24, "rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True},
    ),
    "mistral": Row("MistralForCausalLM", "llama", {"head_dim": 24, "sliding_window": None}),
    "qwen2": Row("Qwen2ForCausalLM", "qwen2"),
    "qwen2-yarn": Row("Qwen2ForCausalLM", "qwen2", {"rope_parameters": YARN}),
    "qwen3": Row("Qwen3ForCausalLM", "qwen3", {"head_dim": 32}),
    "qwen3-tied": Row("Qwen3ForCausalLM", "qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma3": Row(
        "Gemma3ForCausalLM",
        "gemma3",
        {"head_dim": 32, "sliding_window": 8, "num_hidden_layers": 7, "query_pre_attn_scalar": 32},
        cut=("token_embd.weight",),
        llamacpp_bound=1e-4,  # GELU
    ),
    "phi3": Row("Phi3ForCausalLM", "phi3", {"original_max_position_embeddings": 256, "sliding_window": None}),
}
