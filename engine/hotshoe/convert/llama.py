"""Convert Llama and Mistral, which GGUF calls "llama"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe.convert import (
    as_is,
    linear,
    make_layout,
    mlp_tensors,
    non_layer_tensors,
    read_rope,
    read_sizes,
    rope_order,
)

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout, ModelSizes, Rope, TensorSource

__all__ = ["ARCH", "attention", "describe", "non_layer_parts"]

ARCH = "llama"
_MISTRAL_KV_HEADS = 8  # default of num_key_value_heads in transformers' MistralConfig


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    default = _MISTRAL_KV_HEADS if checkpoint.architecture == "MistralForCausalLM" else None
    sizes, rope, tensors, metadata = non_layer_parts(checkpoint, default)
    bias = checkpoint.config.get("mlp_bias") is True
    for i in range(sizes.n_layers):
        block, layer = f"blk.{i}", f"model.layers.{i}"
        tensors += [
            *attention(checkpoint, sizes, i),
            *mlp_tensors(block, f"{layer}.mlp", sizes.dim, sizes.ff, bias=bias),
        ]
    return make_layout(checkpoint, ARCH, tensors, metadata | rope.metadata(ARCH), vocab=sizes.vocab)


def non_layer_parts(
    checkpoint: Checkpoint, n_kv_heads: int | None
) -> tuple[ModelSizes, Rope, list[TensorSource], dict[str, Any]]:
    """Read everything except the layers: sizes, RoPE, tensors and metadata.

    n_kv_heads: the architecture's default of num_key_value_heads; None for as many as query heads.
    """
    checkpoint.require("hidden_act", "silu", "silu")
    sizes = read_sizes(checkpoint, n_kv_heads=n_kv_heads)
    rope = read_rope(checkpoint, "linear", "llama3", "yarn")
    tensors = non_layer_tensors(checkpoint, sizes, tied=False) + rope.llama3_factors(sizes.head_dim)
    metadata = sizes.metadata(ARCH) | {
        f"{ARCH}.vocab_size": sizes.vocab,
        f"{ARCH}.rope.dimension_count": sizes.head_dim,
    }
    if checkpoint.config.get("sliding_window") is not None:
        # only the first Mistral; llama.cpp's converter writes no key, so that its readers ignore the window
        metadata[f"{ARCH}.attention.sliding_window"] = checkpoint.integer("sliding_window")
    return sizes, rope, tensors, metadata


def attention(checkpoint: Checkpoint, sizes: ModelSizes, i: int) -> list[TensorSource]:
    """The tensors of the norms and the attention of layer ``i``."""
    block, layer = f"blk.{i}", f"model.layers.{i}"
    dim, bias = sizes.dim, checkpoint.config.get("attention_bias") is True
    return [
        as_is(f"{block}.attn_norm.weight", f"{layer}.input_layernorm.weight", (dim,)),
        as_is(f"{block}.ffn_norm.weight", f"{layer}.post_attention_layernorm.weight", (dim,)),
        *_reordered_for_rope(f"{block}.attn_q", f"{layer}.self_attn.q_proj", sizes.q, dim, sizes.n_heads, bias),
        *_reordered_for_rope(f"{block}.attn_k", f"{layer}.self_attn.k_proj", sizes.kv, dim, sizes.n_kv_heads, bias),
        *linear(f"{block}.attn_v", f"{layer}.self_attn.v_proj", sizes.kv, dim, bias=bias),
        *linear(f"{block}.attn_output", f"{layer}.self_attn.o_proj", dim, sizes.q, bias=bias),
    ]


def _reordered_for_rope(name: str, source: str, n_out: int, n_in: int, n_heads: int, bias: bool) -> list[TensorSource]:
    # RoPE pairs (2i, 2i + 1) in GGUF's "llama", but (i, i + head_dim / 2) in transformers
    tensors = [rope_order(f"{name}.weight", f"{source}.weight", (n_out, n_in), n_heads)]
    return tensors + ([rope_order(f"{name}.bias", f"{source}.bias", (n_out,), n_heads)] if bias else [])
