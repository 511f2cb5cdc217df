"""Convert Trinity (AFMoE): gated attention, and experts with sigmoid scores and a correction."""

from __future__ import annotations

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Rules,
    make_layout,
    mixture_keys,
    read_rope,
    read_sizes,
    window_keys,
)

__all__ = ["describe"]

_NAMES: Names = {
    "layers.post_attention_layernorm": "post_attention_norm",
    "layers.pre_mlp_layernorm": "ffn_norm",
    "layers.self_attn.gate_proj": "attn_gate",
    "layers.mlp.router.gate": "ffn_gate_inp",
    "layers.mlp.expert_bias": "exp_probs_b.bias",
}
_SETTINGS = {
    "expert_shared_count": "num_shared_experts",
    "expert_weights_norm": "route_norm",
    "expert_weights_scale": "route_scale",
    "leading_dense_block_count": "num_dense_layers",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu")
    checkpoint.require("mup_enabled", False, True)
    checkpoint.expect(score_func="sigmoid", global_attn_every_n_layers=4, attention_bias=False)
    sizes, rope = read_sizes(checkpoint, head_dim=128), read_rope(checkpoint, "linear", "yarn")
    keys = sizes.keys() | rope.keys() | {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim}
    keys |= {"expert_gating_func": 2, **window_keys(checkpoint, sizes.n_layers, period=4)}
    keys |= mixture_keys(checkpoint, "num_experts", used=6, names=_SETTINGS, defaults={"expert_weights_norm": True})
    rules = Rules(names=_NAMES, required=["exp_probs_b.bias"])
    return make_layout(checkpoint, "afmoe", keys, rules, vocab=sizes.vocab)
