"""Convert Qwen3 with a mixture of experts in every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import as_is, experts, experts_used, make_layout, non_layer_tensors, read_rope, read_sizes
from hotshoe.convert.qwen3 import attention

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]

ARCH = "qwen3moe"


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_act", "silu", "silu")
    checkpoint.require("use_sliding_window", False, False)
    checkpoint.require("decoder_sparse_step", 1, 1)
    checkpoint.require("mlp_only_layers", [], [])
    sizes = read_sizes(checkpoint)
    rope = read_rope(checkpoint, "linear", "yarn")
    n_experts = checkpoint.integer("num_local_experts" if "num_local_experts" in checkpoint.config else "num_experts")
    n_used = experts_used(checkpoint, n_experts, 8)
    expert_ff = checkpoint.integer("moe_intermediate_size")
    tensors = non_layer_tensors(checkpoint, sizes, tied=False)
    for i in range(sizes.n_layers):
        router = f"model.layers.{i}.mlp.gate.weight"
        tensors += [
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
        # llama.cpp's converter writes no key, and readers scale the weights to sum to 1, as all published models do
        metadata[f"{ARCH}.expert_weights_norm"] = False
    return make_layout(checkpoint, ARCH, tensors, metadata | rope.metadata(ARCH), vocab=sizes.vocab)
