"""Convert Laguna: layers with a window have more heads, and a RoPE of their own."""

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
    "layers.self_attn.g_proj": "attn_gate",
    "layers.mlp.experts.e_score_correction_bias": "exp_probs_b.bias",
}
_GATES = (True, "per-head", "per_head", "per-element", "per_element")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu")
    checkpoint.require("gating", True, *_GATES)
    checkpoint.expect(attention_bias=False, moe_apply_router_weight_on_input=False)
    checkpoint.expect(moe_router_logit_softcapping=0.0)
    sizes = read_sizes(checkpoint, head_dim=128, n_kv_heads=8)
    rope = read_rope(checkpoint, "yarn", theta=500_000.0, local_theta=10_000.0)
    keys = sizes.keys() | rope.keys() | {"vocab_size": sizes.vocab, "expert_gating_func": 2}
    keys |= mixture_keys(
        checkpoint,
        "num_experts",
        used=8,
        names={"expert_weights_scale": "moe_routed_scaling_factor"},
        defaults={"expert_weights_norm": True, "expert_weights_scale": 1.0},
    )
    window = window_keys(checkpoint, sizes.n_layers, period=4, dense_first=True)
    keys |= window
    keys["attention.head_count"] = _heads(checkpoint, sizes.n_layers, sizes.n_heads, sizes.n_kv_heads)
    keys["leading_dense_block_count"] = checkpoint.leading("mlp_layer_types", sizes.n_layers, "dense", "sparse")
    keys["rope.dimension_count"] = rope.n_rotated(sizes.head_dim)
    if window and rope.sliding is not None:
        keys["rope.dimension_count_swa"] = rope.sliding.n_rotated(sizes.head_dim)
    if not window:
        del keys["rope.freq_base_swa"]
    return make_layout(
        checkpoint, "laguna", keys, Rules(names=_NAMES, required=["exp_probs_b.bias"]), vocab=sizes.vocab
    )


def _heads(checkpoint: Checkpoint, n_layers: int, n_heads: int, n_kv_heads: int) -> list[int]:
    """The query heads of each layer. Raises ModelFileError if they are invalid."""
    heads = checkpoint.config.get("num_attention_heads_per_layer") or [n_heads] * n_layers
    if (
        not isinstance(heads, list)
        or len(heads) != n_layers
        or any(type(n) is not int or n % n_kv_heads for n in heads)
    ):
        raise checkpoint.invalid("num_attention_heads_per_layer", heads, f"{n_layers} multiples of {n_kv_heads}")
    return heads
