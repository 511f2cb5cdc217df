"""Convert Qwen2 and Qwen2.5."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import as_is, linear, make_layout, outer_tensors, read_rope, read_sizes

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
    tensors = outer_tensors(checkpoint, sizes, tied=False)
    dim, ff = sizes.dim, sizes.ff
    for i in range(sizes.n_layers):
        block, layer = f"blk.{i}", f"model.layers.{i}"
        tensors += [
            as_is(f"{block}.attn_norm.weight", f"{layer}.input_layernorm.weight", (dim,)),
            as_is(f"{block}.ffn_norm.weight", f"{layer}.post_attention_layernorm.weight", (dim,)),
            *linear(f"{block}.attn_q", f"{layer}.self_attn.q_proj", sizes.q, dim, bias=True),
            *linear(f"{block}.attn_k", f"{layer}.self_attn.k_proj", sizes.kv, dim, bias=True),
            *linear(f"{block}.attn_v", f"{layer}.self_attn.v_proj", sizes.kv, dim, bias=True),
            *linear(f"{block}.attn_output", f"{layer}.self_attn.o_proj", dim, sizes.q),
            *linear(f"{block}.ffn_gate", f"{layer}.mlp.gate_proj", ff, dim),
            *linear(f"{block}.ffn_up", f"{layer}.mlp.up_proj", ff, dim),
            *linear(f"{block}.ffn_down", f"{layer}.mlp.down_proj", dim, ff),
        ]
    return make_layout(checkpoint, ARCH, tensors, sizes.metadata(ARCH) | rope.metadata(ARCH), vocab=sizes.vocab)
