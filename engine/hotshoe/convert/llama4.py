"""Convert Llama 4: experts in one transposed tensor, attention in chunks, layers without RoPE."""

from __future__ import annotations

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Recipe,
    Rules,
    expert_keys,
    make_layout,
    read_rope,
    read_sizes,
)

__all__ = ["describe"]

_NAMES: Names = {
    "layers.feed_forward.router": "ffn_gate_inp",
    "layers.feed_forward.experts.gate_up_proj": ("ffn_gate_exps", "ffn_up_exps"),
    "layers.feed_forward.experts.down_proj": "ffn_down_exps",
    "layers.feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
    "layers.feed_forward.shared_expert.up_proj": "ffn_up_shexp",
    "layers.feed_forward.shared_expert.down_proj": "ffn_down_shexp",
}
_NUMBERS = {  # names, GGUF keys and the values that readers assume
    "attention_chunk_size": ("attention.chunk_size", 8192),
    "floor_scale": ("attention.temperature_length", 8192),
    "attn_scale": ("attention.temperature_scale", 0.1),
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.text()
    checkpoint.expect(hidden_act="silu", attention_bias=False)
    checkpoint.require("attn_temperature_tuning", True, True, 4)  # published checkpoints have 4 or true
    checkpoint.expect(no_rope_layer_interval=4)
    sizes = read_sizes(checkpoint, head_dim=128, n_kv_heads=8)
    rope = read_rope(checkpoint, "llama3", theta=500_000.0)
    n, dim, ff, step = sizes.n_layers, sizes.dim, sizes.ff, checkpoint.integer("interleave_moe_layer_step", 1)
    with_rope = [int((i + 1) % 4 != 0) for i in range(n)]
    checkpoint.require("no_rope_layers", with_rope, with_rope, [])
    kinds = ["chunked_attention" if rotates else "full_attention" for rotates in with_rope]
    checkpoint.expect(layer_types=kinds)
    experts = list(range(step - 1, n, step))
    checkpoint.expect(moe_layers=experts)
    keys = sizes.keys() | rope.keys() | expert_keys(checkpoint, "num_local_experts", default=16, used=1)
    has_norms = keys["expert_count"] != 128  # readers know Maverick, which has none, by its 128 experts
    checkpoint.require("use_qk_norm", True, has_norms)
    keys |= {
        "feed_forward_length": checkpoint.integer("intermediate_size_mlp"),
        "expert_feed_forward_length": ff,
        "interleave_moe_layer_step": step,
        "vocab_size": sizes.vocab,
        "rope.dimension_count": sizes.head_dim,
    }
    for name, (key, usual) in _NUMBERS.items():
        value = type(usual)(checkpoint.number(name, usual))
        if value != usual:
            keys[key] = value
    n_experts = keys["expert_count"]
    gate_up = (n_experts, dim, 2 * ff)
    rules = Rules(
        names=_NAMES,
        recipes={
            "ffn_gate_exps.weight": Recipe(lambda v: v[..., :ff].swapaxes(1, 2), gate_up),
            "ffn_up_exps.weight": Recipe(lambda v: v[..., ff:].swapaxes(1, 2), gate_up),
            "ffn_down_exps.weight": Recipe(lambda v: v.swapaxes(1, 2), (n_experts, ff, dim)),
        },
        constants=rope.llama3_factors(sizes.head_dim),
    )
    return make_layout(checkpoint, "llama4", keys, rules, vocab=sizes.vocab)
