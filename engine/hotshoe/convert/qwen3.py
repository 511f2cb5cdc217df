"""Convert Qwen3: norms on queries and keys, and no biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import as_is, attention_tensors, make_layout, mlp_tensors, non_layer_tensors, read_rope, read_sizes

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout, ModelSizes, TensorSource

__all__ = ["attention", "describe"]

ARCH = "qwen3"


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_act", "silu", "silu")
    checkpoint.require("use_sliding_window", False, False)
    sizes = read_sizes(checkpoint, head_dim=128)
    rope = read_rope(checkpoint, "linear", "yarn")
    tensors = non_layer_tensors(checkpoint, sizes, tied=False)
    for i in range(sizes.n_layers):
        tensors += [
            *attention(checkpoint, sizes, i),
            *mlp_tensors(f"blk.{i}", f"model.layers.{i}.mlp", sizes.dim, sizes.ff),
        ]
    return make_layout(checkpoint, ARCH, tensors, sizes.metadata(ARCH) | rope.metadata(ARCH), vocab=sizes.vocab)


def attention(checkpoint: Checkpoint, sizes: ModelSizes, i: int) -> list[TensorSource]:
    """The tensors of the norms and the attention of layer ``i``."""
    block, layer = f"blk.{i}", f"model.layers.{i}"
    dim, bias = sizes.dim, checkpoint.config.get("attention_bias") is True
    return [
        as_is(f"{block}.attn_norm.weight", f"{layer}.input_layernorm.weight", (dim,)),
        as_is(f"{block}.ffn_norm.weight", f"{layer}.post_attention_layernorm.weight", (dim,)),
        as_is(f"{block}.attn_q_norm.weight", f"{layer}.self_attn.q_norm.weight", (sizes.head_dim,)),
        as_is(f"{block}.attn_k_norm.weight", f"{layer}.self_attn.k_norm.weight", (sizes.head_dim,)),
        *attention_tensors(block, f"{layer}.self_attn", sizes, bias=bias, out_bias=bias),
    ]
