"""Qwen3 with a mixture of experts in every layer; the experts of a layer are one tensor in GGUF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import as_is, experts, experts_used, make_plan, outer_recipes, read_rope, read_sizes
from hotshoe.convert.qwen3 import attention

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, Plan

__all__ = ["plan"]

ARCH = "qwen3moe"


def plan(checkpoint: Checkpoint) -> Plan:
    """Raises ModelFileError for a config that lacks a size, ConversionError for what GGUF cannot express."""
    checkpoint.require("hidden_act", "silu", "silu")
    checkpoint.require("use_sliding_window", False, False)
    checkpoint.require("decoder_sparse_step", 1, 1)
    checkpoint.require("mlp_only_layers", [], [])
    sizes = read_sizes(checkpoint)
    rope = read_rope(checkpoint, "linear", "yarn")
    n_experts = checkpoint.integer("num_local_experts" if "num_local_experts" in checkpoint.config else "num_experts")
    n_used = experts_used(checkpoint, n_experts, 8)
    expert_ff = checkpoint.integer("moe_intermediate_size")
    recipes = outer_recipes(checkpoint, sizes, tied=False)
    for i in range(sizes.n_layers):
        router = f"model.layers.{i}.mlp.gate.weight"
        recipes += [
            *attention(checkpoint, sizes, i),
            as_is(f"blk.{i}.ffn_gate_inp.weight", router, (n_experts, sizes.dim)),
            *experts(checkpoint, f"blk.{i}", f"model.layers.{i}.mlp.experts", n_experts, expert_ff, sizes.dim),
        ]
    metadata = sizes.metadata(ARCH) | {
        f"{ARCH}.expert_count": n_experts,
        f"{ARCH}.expert_used_count": n_used,
        f"{ARCH}.expert_feed_forward_length": expert_ff,
    }
    if not checkpoint.config.get("norm_topk_prob", False):
        # llama.cpp writes no key and takes the weights of the chosen experts to sum to 1, as in every published model
        metadata[f"{ARCH}.expert_weights_norm"] = False
    return make_plan(checkpoint, ARCH, recipes, metadata | rope.metadata(ARCH), vocab=sizes.vocab)
