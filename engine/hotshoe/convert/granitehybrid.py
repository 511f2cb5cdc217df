"""Convert Granite 4 H: layers with Mamba-2 or attention; experts with a shared one, or one MLP."""

from __future__ import annotations

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
from hotshoe.convert.granitemoe import EXPERT_NAMES, SHARED_NAMES, scale_keys
from hotshoe.convert.mamba2 import CONTEXT, mamba2_recipes, refuse_time_step_limit

__all__ = ["describe"]

_ATTENTION, _MAMBA = ("attention", "full_attention"), ("mamba", "linear_attention")
_DENSE_NAMES: Names = {
    "layers.shared_mlp.input_linear": ("ffn_gate", "ffn_up"),
    "layers.shared_mlp.output_linear": "ffn_down",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=False, mamba_proj_bias=False)
    checkpoint.require("position_embedding_type", None, "nope", "rope")
    refuse_time_step_limit(checkpoint)
    sizes, rope = read_sizes(checkpoint, dense=False), read_rope(checkpoint, "linear", "yarn")
    kinds = checkpoint.kinds("layer_types", sizes.n_layers, (*_ATTENTION, *_MAMBA))
    n_experts, shared = checkpoint.count("num_local_experts"), checkpoint.integer("shared_intermediate_size", 1024)
    heads, groups = checkpoint.integer("mamba_n_heads", 128), checkpoint.integer("mamba_n_groups", 1)
    # models without recurrent layers have architectures of their own, which always have RoPE
    has_rope, hybrid = checkpoint.config.get("position_embedding_type") == "rope", not set(kinds) <= {*_ATTENTION}
    if not hybrid and not has_rope:
        raise checkpoint.refusal(
            "no layer is recurrent, and position_embedding_type is not 'rope'; a GGUF file can only express RoPE then"
        )
    keys = sizes.keys(heads=False) | rope.keys() | scale_keys(checkpoint)
    keys |= (
        expert_keys(checkpoint, "num_local_experts", used=2)
        if n_experts
        else {"expert_count": 0, "expert_used_count": 0, "feed_forward_length": shared}
    )
    keys |= {
        "context_length": sizes.context if has_rope else CONTEXT,
        "attention.head_count_kv": [sizes.n_kv_heads if kind in _ATTENTION else 0 for kind in kinds],
        "expert_shared_feed_forward_length": shared,
        "rope.dimension_count": sizes.head_dim,
        "rope.scaling.finetuned": has_rope,
        "vocab_size": sizes.vocab,
        "ssm.conv_kernel": checkpoint.integer("mamba_d_conv", 4),
        "ssm.state_size": checkpoint.integer("mamba_d_state", 256),
        "ssm.group_count": groups,
        "ssm.inner_size": checkpoint.integer("mamba_expand", 2) * sizes.dim,
        "ssm.time_step_rank": heads,
    }
    orders = {"attn_q.weight": interleave(sizes.n_heads), "attn_k.weight": interleave(sizes.n_kv_heads)}
    rules = Rules(
        required=["ssm_conv1d.bias"] if checkpoint.config.get("mamba_conv_bias", True) else [],
        names=EXPERT_NAMES | SHARED_NAMES if n_experts else _DENSE_NAMES,
        recipes=orders | (mamba2_recipes(keys["ssm.inner_size"], groups) if hybrid else {}),
    )
    arch = "granitehybrid" if hybrid else "granitemoe" if n_experts else "granite"
    return make_layout(checkpoint, arch, keys, rules, vocab=sizes.vocab)
