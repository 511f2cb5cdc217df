"""Convert MiMo-V2: a window and attention sinks in most layers, and experts in all layers except the first."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, expert_keys, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=False, scoring_func="sigmoid")
    checkpoint.expect(norm_topk_prob=True, n_group=1, topk_method="noaux_tc", add_full_attention_sink_bias=False)
    checkpoint.expect(add_swa_attention_sink_bias=True, routed_scaling_factor=1.0)
    sizes = read_sizes(checkpoint, eps="layernorm_epsilon", default_eps=1e-5)
    rope = read_rope(checkpoint)
    n, kv = sizes.n_layers, checkpoint.integer("num_key_value_heads")
    wide = checkpoint.integer("swa_num_key_value_heads", 2 * kv)
    same = ("head_dim", "v_head_dim", "num_attention_heads")
    checkpoint.expect(**{f"swa_{name}": checkpoint.integer(name) for name in same})
    windowed = [bool(kind) for kind in checkpoint.kinds("hybrid_layer_pattern", n, (0, 1))]
    checkpoint.expect(moe_layer_freq=[0] + [1] * (n - 1))
    keys = sizes.keys() | rope.keys() | expert_keys(checkpoint, "n_routed_experts", used=8) | {
        "attention.head_count_kv": [wide if is_windowed else kv for is_windowed in windowed],
        "attention.value_length": checkpoint.integer("v_head_dim"),
        "attention.sliding_window": checkpoint.integer("sliding_window"),
        "attention.sliding_window_pattern": [int(is_windowed) for is_windowed in windowed],
        "attention.value_scale": checkpoint.number("attention_value_scale", 1.0),
        "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size"),
        "expert_gating_func": 2,
        "rope.dimension_count": rope.n_rotated(sizes.head_dim, 1.0),
        "rope.freq_base_swa": checkpoint.number("swa_rope_theta", 10_000.0),
    }  # fmt: skip
    if checkpoint.config.get("n_group") is not None:
        keys |= {"expert_group_count": 1, "expert_group_used_count": checkpoint.integer("topk_group", 1)}
    rules = Rules(
        names={"layers.self_attn.attention_sink_bias": "attn_sinks.weight"},
        required=["exp_probs_b.bias"],
        ignored=("model.mtp.",),
    )
    return make_layout(checkpoint, "mimo2", keys, rules, vocab=sizes.vocab)
