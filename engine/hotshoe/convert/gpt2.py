"""Convert GPT-2 and StarCoder 1."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe.convert import Checkpoint, FileLayout, ModelSizes, Recipe, Rules, make_layout, read_sizes

__all__ = ["describe", "describe_starcoder"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    sizes = _sizes(checkpoint, "gelu_new")
    # the layers are convolutions of width 1, whose weights have the axes the other way round
    shapes = {"attn_qkv": (sizes.dim, 3 * sizes.dim), "attn_output": (sizes.dim, sizes.dim)}
    shapes |= {"ffn_up": (sizes.dim, sizes.ff), "ffn_down": (sizes.ff, sizes.dim)}
    recipes = {f"{name}.weight": Recipe(np.transpose, shape) for name, shape in shapes.items()}
    keys = sizes.keys()
    del keys["attention.head_count_kv"]
    return _layout(checkpoint, "gpt2", sizes, keys, recipes)


def describe_starcoder(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(multi_query=True)
    sizes = _sizes(checkpoint, "gelu_pytorch_tanh", n_kv_heads=1)
    return _layout(checkpoint, "starcoder", sizes, sizes.keys(), {})


def _sizes(checkpoint: Checkpoint, activation: str, n_kv_heads: int | None = None) -> ModelSizes:
    checkpoint.expect(activation_function=activation, scale_attn_weights=True)
    checkpoint.expect(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    named = checkpoint.renamed(
        hidden_size="n_embd",
        num_attention_heads="n_head",
        num_hidden_layers="n_layer",
        max_position_embeddings="n_positions",
    )
    checkpoint.require("n_inner", None, 4 * named.integer("hidden_size"))
    sizes = read_sizes(named, layer_norm_eps="layer_norm_epsilon", n_kv_heads=n_kv_heads, dense=False)
    return replace(sizes, ff=4 * sizes.dim)


def _layout(
    checkpoint: Checkpoint, arch: str, sizes: ModelSizes, keys: dict[str, Any], recipes: dict[str, Recipe]
) -> FileLayout:
    rules = Rules(
        required=["attn_*.bias", "ffn_*.bias", "output_norm.bias"],
        recipes=recipes,
        rows={"position_embd.weight": sizes.context},
    )
    return make_layout(checkpoint, arch, keys, rules, vocab=sizes.vocab, tied=True)
