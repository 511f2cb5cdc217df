"""Convert Qwen 3.5, 3.6 and 3.8, dense or with experts: gated delta nets, and attention in some layers.

The value heads have another order in GGUF: the first of each key head, then the second of each, and so on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe.convert import (
    Array,
    Checkpoint,
    FileLayout,
    ModelSizes,
    Recipe,
    Rope,
    Rules,
    expert_keys,
    make_layout,
    minus_exp,
    plus,
    read_rope,
    read_sizes,
)
from hotshoe.convert._nextn import find_drafting_layer

__all__ = ["NORMS", "delta_keys", "describe", "shared_mixture_keys"]

_KINDS = ("linear_attention", "full_attention")
# checkpoints store the weights of these norms less 1
NORMS = ("attn_norm", "post_attention_norm", "attn_q_norm", "attn_k_norm", "output_norm")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.text()
    experts = checkpoint.config.get("num_experts") is not None
    sizes, rope = read_sizes(checkpoint, head_dim=256, dense=not experts), read_rope(checkpoint, "linear", "yarn")
    keys = (
        sizes.keys()
        | delta_keys(checkpoint, sizes, rope)
        | (shared_mixture_keys(checkpoint, used=8) if experts else {})
    )
    layer = find_drafting_layer(checkpoint, keys)
    keys |= layer.keys
    keys["rope.dimension_sections"] = rope.sections(11, 11, 10, interleaved=True)
    heads, groups, n_keys = (keys[f"ssm.{n}"] for n in ("time_step_rank", "group_count", "state_size"))

    def tile(value: Array, start: int = 0) -> Array:
        """Reorder the rows from ``start`` on: from (key head, value head of it) to (value head, key head)."""
        rows = value[start:].reshape(groups, heads // groups, -1)
        return np.concatenate([value[:start], rows.swapaxes(0, 1).reshape(value[start:].shape)])

    values = Recipe(lambda v: tile(v, 2 * groups * n_keys))  # after the queries and keys
    recipes = {
        **{f"{norm}.weight": plus(1.0) for norm in NORMS},
        **dict.fromkeys(("attn_qkv.weight", "ssm_conv1d.weight"), values),
        **dict.fromkeys(("attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_dt.bias"), Recipe(tile)),
        "ssm_a": Recipe(lambda v: minus_exp(tile(v))),
        "ssm_out.weight": Recipe(lambda v: tile(v.T).T),
    }
    rules = Rules(
        names={"layers.post_attention_layernorm": "post_attention_norm", **layer.names},
        recipes={**recipes, **layer.recipes},
        ignored=("mtp.",),  # other layers that only draft tokens
    )
    arch = "qwen35moe" if experts else "qwen35"
    return make_layout(layer.checkpoint, arch, keys | rope.keys(), rules, vocab=sizes.vocab)


def delta_keys(checkpoint: Checkpoint, sizes: ModelSizes, rope: Rope) -> dict[str, Any]:
    """The keys of the recurrent layers, and of RoPE on a part of each head."""
    checkpoint.expect(hidden_act="silu", attention_bias=False)
    head_dim, heads = checkpoint.integer("linear_value_head_dim", 128), checkpoint.integer("linear_num_value_heads", 32)
    groups = checkpoint.integer("linear_num_key_heads", 16)
    if heads % groups:
        raise checkpoint.refusal(f"linear_num_value_heads {heads} is not a multiple of linear_num_key_heads {groups}")
    interval = checkpoint.integer("full_attention_interval", 4)
    usual = [_KINDS[not (i + 1) % interval] for i in range(sizes.n_layers)]
    kinds = checkpoint.kinds("layer_types", sizes.n_layers, _KINDS, usual)
    return {
        "ssm.conv_kernel": checkpoint.integer("linear_conv_kernel_dim", 4),
        "ssm.state_size": checkpoint.integer("linear_key_head_dim", 128),
        "ssm.group_count": groups,
        "ssm.time_step_rank": heads,
        "ssm.inner_size": head_dim * heads,
        "attention.recurrent_layers": [kind == _KINDS[0] for kind in kinds],
        "full_attention_interval": interval,
        "rope.dimension_count": rope.n_rotated(sizes.head_dim, 0.25),
    }


def shared_mixture_keys(checkpoint: Checkpoint, *, used: int) -> dict[str, Any]:
    """The keys of the experts. ``used``: the default of num_experts_per_tok."""
    return expert_keys(checkpoint, "num_experts", used=used) | {
        "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size", 512),
        "expert_shared_feed_forward_length": checkpoint.integer("shared_expert_intermediate_size", 512),
    }
