"""Convert Mellum 2."""

from __future__ import annotations

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Rules,
    expert_keys,
    make_layout,
    read_rope,
    read_sizes,
    windowed_layers,
)

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", norm_topk_prob=True)
    sizes, rope = (
        read_sizes(checkpoint, head_dim=128),
        read_rope(checkpoint, "linear", "yarn", theta=500_000.0, local_theta=10_000.0),
    )
    count = "num_local_experts" if "num_local_experts" in checkpoint.config else "num_experts"
    keys = sizes.keys() | expert_keys(checkpoint, count, used=8) | rope.keys()
    keys["expert_feed_forward_length"] = checkpoint.integer("moe_intermediate_size")
    checkpoint.kinds("mlp_layer_types", sizes.n_layers, ["sparse"], ["sparse"] * sizes.n_layers)
    if checkpoint.config.get("sliding_window") is not None:
        keys["attention.sliding_window"] = checkpoint.integer("sliding_window")
        keys["attention.sliding_window_pattern"] = windowed_layers(checkpoint, sizes.n_layers, period=4)
    rules = Rules(required=checkpoint.biases(attention_bias=["attn_*"]))
    return make_layout(checkpoint, "mellum", keys, rules, vocab=sizes.vocab)
