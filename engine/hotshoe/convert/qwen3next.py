"""Convert Qwen3-Next: gated delta nets, and attention in some layers; experts in all."""

from __future__ import annotations

import numpy as np

from hotshoe.convert import (
    Array,
    Checkpoint,
    FileLayout,
    Recipe,
    Rules,
    make_layout,
    minus_exp,
    plus,
    read_rope,
    read_sizes,
)
from hotshoe.convert._nextn import find_drafting_layer
from hotshoe.convert.qwen35 import NORMS, delta_keys, shared_mixture_keys

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(decoder_sparse_step=1, mlp_only_layers=[])
    sizes, rope = read_sizes(checkpoint, head_dim=256), read_rope(checkpoint, "linear", "yarn")
    keys = sizes.keys() | delta_keys(checkpoint, sizes, rope) | shared_mixture_keys(checkpoint, used=10)
    if not checkpoint.config.get("norm_topk_prob", True):
        keys["expert_weights_norm"] = False  # llama.cpp's converter writes no key, and readers scale the weights
    layer = find_drafting_layer(checkpoint, keys)
    keys |= layer.keys
    heads, groups, n_keys = (keys[f"ssm.{n}"] for n in ("time_step_rank", "group_count", "state_size"))
    per_group = heads // groups * (keys["ssm.inner_size"] // heads)  # elements of the values of a key head
    ends = np.cumsum([n_keys, n_keys, per_group])

    def part(value: Array) -> list[Array]:
        """Queries, keys, values and gates, from rows that are sorted by key head."""
        return [p.reshape(-1, sizes.dim) for p in np.split(value.reshape(groups, -1, sizes.dim), ends, axis=1)]

    packed = (2 * groups * (n_keys + per_group), sizes.dim)
    rules = Rules(
        names={
            "layers.post_attention_layernorm": "post_attention_norm",
            "layers.linear_attn.in_proj_qkvz": ("attn_qkv", "attn_gate"),
            **layer.names,
        },
        recipes={
            **{f"{norm}.weight": plus(1.0) for norm in NORMS},
            "attn_qkv.weight": Recipe(lambda v: np.concatenate(part(v)[:3]), packed),
            "attn_gate.weight": Recipe(lambda v: part(v)[3], packed),
            "ssm_a": Recipe(minus_exp),
            **layer.recipes,
        },
        ignored=("mtp.",),  # other layers that only draft tokens
    )
    return make_layout(layer.checkpoint, "qwen3next", keys | rope.keys(), rules, vocab=sizes.vocab)
