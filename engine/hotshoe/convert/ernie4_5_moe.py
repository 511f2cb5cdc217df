"""Convert ERNIE 4.5 with experts: softmax scores, and a correction when experts are chosen."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Names, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe"]

_NAMES: Names = {"layers.mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias"}
_OLD_NAMES: Names = {"layers.mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias"}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", use_bias=False)
    sizes, rope = read_sizes(checkpoint, n_kv_heads=4), read_rope(checkpoint, "linear", "yarn", theta=500_000.0)
    checkpoint.require("moe_layer_end_index", -1, -1, sizes.n_layers - 1)
    keys = sizes.keys() | rope.keys() | {"expert_count": checkpoint.integer("moe_num_experts", 64)}
    keys |= {
        "expert_used_count": checkpoint.integer("moe_k", 6),
        "interleave_moe_layer_step": checkpoint.integer("moe_layer_interval", 1),
        "leading_dense_block_count": checkpoint.count("moe_layer_start_index"),
        "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size"),
        "expert_shared_count": checkpoint.count("moe_num_shared_experts"),
    }
    if keys["expert_shared_count"]:
        keys["expert_shared_feed_forward_length"] = keys["expert_shared_count"] * keys["expert_feed_forward_length"]
    old = any("mlp.moe_statics" in name for name in checkpoint.tensors)
    rules = Rules(names=_OLD_NAMES if old else _NAMES, ignored=("mtp_",))
    return make_layout(checkpoint, "ernie4_5-moe", keys, rules, vocab=sizes.vocab, tied=True)
