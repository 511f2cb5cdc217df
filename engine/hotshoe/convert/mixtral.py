"""Convert Mixtral: Llama with a mixture of experts in every layer, which GGUF calls "llama" too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import as_is, experts, experts_used, make_layout
from hotshoe.convert.llama import ARCH, attention, non_layer_parts

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]

_N_KV_HEADS = 8  # default of num_key_value_heads in transformers' MixtralConfig
# the names of the three matrices in Mixtral's checkpoints
_PARTS = {"gate": "w1", "down": "w2", "up": "w3"}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    sizes, rope, tensors, metadata = non_layer_parts(checkpoint, _N_KV_HEADS)
    n_experts = checkpoint.integer("num_local_experts", 8)
    for i in range(sizes.n_layers):
        block, source = f"blk.{i}", f"model.layers.{i}.block_sparse_moe"
        tensors += [
            *attention(checkpoint, sizes, i),
            as_is(f"{block}.ffn_gate_inp.weight", f"{source}.gate.weight", (n_experts, sizes.dim)),
            *experts(checkpoint, block, f"{source}.experts", n_experts, sizes.ff, sizes.dim, _PARTS),
        ]
    metadata |= {
        f"{ARCH}.expert_count": n_experts,
        f"{ARCH}.expert_used_count": experts_used(checkpoint, n_experts, 2),
    }
    return make_layout(checkpoint, ARCH, tensors, metadata | rope.metadata(ARCH), vocab=sizes.vocab)
