"""Mixtral: Llama's attention and, in every layer, a mixture of experts; to GGUF it is "llama", too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import as_is, experts, experts_used, make_plan
from hotshoe.convert.llama import ARCH, attention, outer

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, Plan

__all__ = ["plan"]

# as Mixtral's authors named the three matrices
_PARTS = {"gate": "w1", "down": "w2", "up": "w3"}


def plan(checkpoint: Checkpoint) -> Plan:
    """Raises ModelFileError for a config that lacks a size, ConversionError for what GGUF cannot express."""
    sizes, rope, recipes, metadata = outer(checkpoint, 8)
    n_experts = checkpoint.integer("num_local_experts", 8)
    for i in range(sizes.n_layers):
        block, source = f"blk.{i}", f"model.layers.{i}.block_sparse_moe"
        recipes += [
            *attention(checkpoint, sizes, i),
            as_is(f"{block}.ffn_gate_inp.weight", f"{source}.gate.weight", (n_experts, sizes.dim)),
            *experts(checkpoint, block, f"{source}.experts", n_experts, sizes.ff, sizes.dim, _PARTS),
        ]
    metadata |= {
        f"{ARCH}.expert_count": n_experts,
        f"{ARCH}.expert_used_count": experts_used(checkpoint, n_experts, 2),
    }
    return make_plan(checkpoint, ARCH, recipes, metadata | rope.metadata(ARCH), vocab=sizes.vocab)
