"""Convert Hunyuan 3: norms on queries and keys, and experts with sigmoid scores and a correction."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Names, Rules, expert_keys, make_layout, read_rope, read_sizes

__all__ = ["describe"]

_NAMES: Names = {
    "layers.mlp.router.gate": "ffn_gate_inp",
    "layers.mlp.expert_bias": "exp_probs_b",
    "layers.mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
    "layers.mlp.shared_mlp.up_proj": "ffn_up_shexp",
    "layers.mlp.shared_mlp.down_proj": "ffn_down_shexp",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", route_norm=True, mlp_bias=False)
    sizes, rope = read_sizes(checkpoint, head_dim=128, n_kv_heads=8), read_rope(checkpoint, "linear", "yarn")
    keys = sizes.keys() | rope.keys() | expert_keys(checkpoint, "num_experts", used=8)
    ff = checkpoint.integer("moe_intermediate_size")
    keys |= {
        "expert_feed_forward_length": ff,
        "expert_shared_feed_forward_length": ff * checkpoint.integer("num_shared_experts", 1),
        "expert_weights_norm": True,
        "expert_weights_scale": checkpoint.number("router_scaling_factor", 1.0),
        "expert_gating_func": 2,
    }
    n_dense = checkpoint.leading("mlp_layer_types", sizes.n_layers, "dense", "sparse")
    if n_dense != 1:
        keys["leading_dense_block_count"] = n_dense
    rules = Rules(
        names=_NAMES,
        required=checkpoint.biases(attention_bias=("attn_q", "attn_k", "attn_v", "attn_output")),
        ignored=checkpoint.drafting("num_nextn_predict_layers", sizes.n_layers),
    )
    return make_layout(checkpoint, "hy_v3", keys, rules, vocab=sizes.vocab)
