"""Convert Granite 3 MoE, with shared experts or without: gate and up of all experts are one tensor."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Rules,
    expert_keys,
    interleave,
    make_layout,
    read_rope,
    read_sizes,
)

__all__ = ["EXPERT_NAMES", "SHARED_NAMES", "describe", "scale_keys"]

_SCALES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
EXPERT_NAMES: Names = {
    "layers.block_sparse_moe.router.layer": "ffn_gate_inp",
    "layers.block_sparse_moe.input_linear": ("ffn_gate_exps", "ffn_up_exps"),
    "layers.block_sparse_moe.output_linear": "ffn_down_exps",
}
SHARED_NAMES: Names = {
    "layers.shared_mlp.input_linear": ("ffn_gate_shexp", "ffn_up_shexp"),
    "layers.shared_mlp.output_linear": "ffn_down_shexp",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=False)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "yarn")
    keys = sizes.keys(heads=False) | rope.keys() | expert_keys(checkpoint, "num_local_experts", used=2)
    keys |= scale_keys(checkpoint) | {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim}
    shared = checkpoint.config.get("shared_intermediate_size")
    if shared:
        keys["expert_shared_feed_forward_length"] = checkpoint.integer("shared_intermediate_size")
    rules = Rules(
        names=EXPERT_NAMES | (SHARED_NAMES if shared else {}),
        recipes={
            "attn_q.weight": interleave(sizes.n_heads),
            "attn_k.weight": interleave(sizes.n_kv_heads),
        },
    )
    return make_layout(checkpoint, "granitemoe", keys, rules, vocab=sizes.vocab)


def scale_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """The keys of the scales of attention, embeddings, halves of blocks and logits."""
    return {key: checkpoint.number(name, 1.0) for name, key in _SCALES.items()}
