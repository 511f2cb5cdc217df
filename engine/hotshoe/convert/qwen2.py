"""Convert Qwen2 and Qwen2.5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import as_is, attention_tensors, make_layout, mlp_tensors, non_layer_tensors, read_rope, read_sizes

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]

ARCH = "qwen2"


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_act", "silu", "silu")
    checkpoint.require("use_sliding_window", False, False)
    sizes = read_sizes(checkpoint)
    rope = read_rope(checkpoint, "linear", "yarn")
    tensors = non_layer_tensors(checkpoint, sizes, tied=False)
    for i in range(sizes.n_layers):
        block, layer = f"blk.{i}", f"model.layers.{i}"
        tensors += [
            as_is(f"{block}.attn_norm.weight", f"{layer}.input_layernorm.weight", (sizes.dim,)),
            as_is(f"{block}.ffn_norm.weight", f"{layer}.post_attention_layernorm.weight", (sizes.dim,)),
            *attention_tensors(block, f"{layer}.self_attn", sizes, bias=True),
            *mlp_tensors(block, f"{layer}.mlp", sizes.dim, sizes.ff),
        ]
    return make_layout(checkpoint, ARCH, tensors, sizes.metadata(ARCH) | rope.metadata(ARCH), vocab=sizes.vocab)
