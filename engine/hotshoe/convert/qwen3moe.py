"""Convert Qwen3 with a mixture of experts in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import Rules, expert_keys, make_layout, read_rope, read_sizes

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_act", "silu", "silu")
    checkpoint.require("use_sliding_window", False, False)
    checkpoint.require("decoder_sparse_step", 1, 1)
    checkpoint.require("mlp_only_layers", [], [])
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "yarn")
    count = "num_local_experts" if "num_local_experts" in checkpoint.config else "num_experts"
    keys = sizes.keys() | expert_keys(checkpoint, count, used=8)
    keys["expert_feed_forward_length"] = checkpoint.integer("moe_intermediate_size")
    if not checkpoint.config.get("norm_topk_prob", False):
        # llama.cpp's converter writes no key, and readers scale the weights to sum to 1, as all published models do
        keys["expert_weights_norm"] = False
    rules = Rules(required=checkpoint.biases(attention_bias=("attn_q", "attn_k", "attn_v", "attn_output")))
    return make_layout(checkpoint, "qwen3moe", keys | rope.keys(), rules, vocab=sizes.vocab)
