"""Convert LFM2 MoE: LFM2 with experts in all layers except the first ones."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Names, Rules, expert_keys, make_layout, read_rope, read_sizes
from hotshoe.convert.lfm2 import layer_keys

__all__ = ["describe"]

_NAMES: Names = {
    "model.embedding_norm": "token_embd_norm",
    "layers.feed_forward.gate": "ffn_gate_inp",
    "layers.feed_forward.expert_bias": "exp_probs_b.bias",
    "layers.feed_forward.experts.w1": "ffn_gate_exps",
    "layers.feed_forward.experts.w3": "ffn_up_exps",
    "layers.feed_forward.experts.w2": "ffn_down_exps",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(conv_bias=False, use_expert_bias=True, norm_topk_prob=True, routed_scaling_factor=1.0)
    sizes = read_sizes(checkpoint, eps="norm_eps", n_kv_heads=8)
    keys = sizes.keys() | layer_keys(checkpoint, sizes) | expert_keys(checkpoint, "num_experts", used=4)
    keys |= {
        "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size"),
        "leading_dense_block_count": checkpoint.count("num_dense_layers"),
        "expert_gating_func": 2,
    }
    rules = Rules(names=_NAMES, required=["exp_probs_b.bias"])
    keys |= read_rope(checkpoint, theta=1_000_000.0).keys()
    return make_layout(checkpoint, "lfm2moe", keys, rules, vocab=sizes.vocab, tied=True)
