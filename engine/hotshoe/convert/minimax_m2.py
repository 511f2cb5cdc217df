"""Convert MiniMax-M2: norms over all heads of queries and keys, and partial RoPE."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Names, Rules, expert_keys, make_layout, read_rope, read_sizes

__all__ = ["describe"]

_NAMES: Names = {"layers.block_sparse_moe.e_score_correction_bias": "exp_probs_b.bias"}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", scoring_func="sigmoid", qk_norm_type="per_layer", use_qk_norm=True)
    checkpoint.expect(use_routing_bias=True)
    sizes, rope = read_sizes(checkpoint, head_dim=128, n_kv_heads=8), read_rope(checkpoint, "yarn", theta=5_000_000.0)
    keys = sizes.keys() | rope.keys() | expert_keys(checkpoint, "num_local_experts", used=8)
    share = checkpoint.integer("rotary_dim", sizes.head_dim) / sizes.head_dim
    keys |= {
        "expert_feed_forward_length": sizes.ff,
        "expert_gating_func": 2,
        "rope.dimension_count": rope.n_rotated(sizes.head_dim, share),
    }
    rules = Rules(names=_NAMES, required=["exp_probs_b.bias"])
    return make_layout(checkpoint, "minimax-m2", keys, rules, vocab=sizes.vocab)
