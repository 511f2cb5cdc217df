"""Convert Qwen1.5 and Qwen2 with experts: a shared expert with a gate of its own."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, expert_keys, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", use_sliding_window=False, decoder_sparse_step=1, mlp_only_layers=[])
    checkpoint.expect(norm_topk_prob=False, qkv_bias=True)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "yarn")
    keys = sizes.keys() | rope.keys() | expert_keys(checkpoint, "num_experts", used=4)
    keys["expert_feed_forward_length"] = checkpoint.integer("moe_intermediate_size")
    keys["expert_shared_feed_forward_length"] = checkpoint.integer("shared_expert_intermediate_size")
    rules = Rules(required=[f"attn_{x}.bias" for x in "qkv"])
    return make_layout(checkpoint, "qwen2moe", keys, rules, vocab=sizes.vocab)
