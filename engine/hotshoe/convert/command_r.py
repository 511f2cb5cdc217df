"""Convert Cohere's models: Command R and Aya, and those with a sliding window (Command R7B, Command A)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe.convert import Rules, make_layout, read_rope, read_sizes, window_keys

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout, ModelSizes

__all__ = ["describe", "describe_cohere2"]


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
    checkpoint.require("rotary_pct", 1.0, 1.0)
    sizes, keys = _keys(checkpoint)
    keys |= {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim}
    keys |= window_keys(checkpoint, sizes.n_layers, period=checkpoint.integer("sliding_window_pattern", 4))
    return make_layout(checkpoint, "cohere2", keys, vocab=sizes.vocab, tied=True)


def _keys(checkpoint: Checkpoint) -> tuple[ModelSizes, dict[str, Any]]:
    checkpoint.require("hidden_act", "silu", "silu")
    checkpoint.require("attention_bias", False, False)
    sizes, rope = read_sizes(checkpoint, layer_norm_eps="layer_norm_eps"), read_rope(checkpoint, theta=500_000.0)
    keys = sizes.keys() | rope.keys()
    keys |= {"rope.scaling.type": "none", "logit_scale": checkpoint.number("logit_scale", 0.0625)}
    return sizes, keys
