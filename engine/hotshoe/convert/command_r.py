"""Convert Cohere's models: Command R and Aya, and those with a sliding window (Command R7B, Command A)."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    ModelSizes,
    Rules,
    expert_keys,
    make_layout,
    read_rope,
    read_sizes,
    window_keys,
    windowed_layers,
)

__all__ = ["describe", "describe_cohere2", "describe_cohere2moe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    norms = ("attn_q_norm.weight", "attn_k_norm.weight") if checkpoint.config.get("use_qk_norm") else ()
    sizes, keys = _keys(checkpoint)
    if checkpoint.config.get("model_max_length") is not None:
        keys["context_length"] = checkpoint.integer("model_max_length")  # max_position_embeddings is less
    rules = Rules(required=norms)
    return make_layout(checkpoint, "command-r", keys, rules, vocab=sizes.vocab, tied=True)


def describe_cohere2(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(rotary_pct=1.0)
    sizes, keys = _keys(checkpoint)
    keys |= {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim}
    keys |= window_keys(checkpoint, sizes.n_layers, period=checkpoint.integer("sliding_window_pattern", 4))
    return make_layout(checkpoint, "cohere2", keys, vocab=sizes.vocab, tied=True)


def describe_cohere2moe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of a model with experts. Raises as ``describe`` does."""
    checkpoint.expect(shared_expert_combination_strategy="average")
    checkpoint.require("expert_selection_fn", "softmax", "sigmoid", "softmax")
    checkpoint.expect(prefix_dense_sliding_window_pattern=1)
    eps = "rms_norm_eps" if checkpoint.config.get("rms_norm_eps") is not None else ""
    sizes, keys = _keys(checkpoint, eps)
    width, shared = sizes.ff, checkpoint.count("num_shared_experts")
    normalized = checkpoint.config.get("norm_topk_prob") is not False
    is_sigmoid = checkpoint.config.get("expert_selection_fn") == "sigmoid"
    n_dense = checkpoint.count("first_k_dense_replace")
    if checkpoint.config.get("mlp_layer_types") is not None:
        n_dense = checkpoint.leading("mlp_layer_types", sizes.n_layers, "dense", "sparse")
    keys |= expert_keys(checkpoint, "num_experts", used=2) | {
        "attention.sliding_window": checkpoint.integer("sliding_window"),
        "attention.sliding_window_pattern": windowed_layers(checkpoint, sizes.n_layers, period=4),
        "feed_forward_length": checkpoint.integer("prefix_dense_intermediate_size", width),
        "expert_feed_forward_length": width,
        "expert_gating_func": 2 if is_sigmoid else 1,
        # a softmax is that of the chosen experts, whose weights sum to 1
        "expert_weights_norm": normalized or not is_sigmoid,
        "leading_dense_block_count": n_dense,
        "rope.dimension_count": sizes.head_dim,
        "vocab_size": sizes.vocab,
    }
    if shared:
        keys |= {"expert_shared_count": shared, "expert_shared_feed_forward_length": width * shared}
    rules = Rules(ignored=checkpoint.drafting("num_nextn_predict_layers", sizes.n_layers))
    return make_layout(checkpoint, "cohere2moe", keys, rules, vocab=sizes.vocab, tied=True)


def _keys(checkpoint: Checkpoint, rms_eps: str = "") -> tuple[ModelSizes, dict[str, Any]]:
    checkpoint.expect(hidden_act="silu", attention_bias=False)
    sizes = read_sizes(checkpoint, eps=rms_eps, layer_norm_eps="" if rms_eps else "layer_norm_eps")
    rope = read_rope(checkpoint, theta=500_000.0)
    keys = sizes.keys() | rope.keys()
    keys |= {"rope.scaling.type": "none", "logit_scale": checkpoint.number("logit_scale", 0.0625)}
    return sizes, keys
