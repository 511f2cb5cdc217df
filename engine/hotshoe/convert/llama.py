"""Convert Llama and Mistral, which GGUF calls "llama"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Rules, interleave, make_layout, read_rope, read_sizes

__all__ = ["describe", "describe_llama"]

_MISTRAL_KV_HEADS = 8  # default of num_key_value_heads in transformers' MistralConfig


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    default = _MISTRAL_KV_HEADS if checkpoint.architecture == "MistralForCausalLM" else None
    return describe_llama(checkpoint, default, {})


def describe_llama(
    checkpoint: Checkpoint,
    n_kv_heads: int | None,
    more: dict[str, Any],
    *,
    arch: str = "llama",
    theta: float = 10_000.0,
    tied: bool = False,
    activation: str = "silu",
    also: Rules | None = None,
) -> FileLayout:
    """Describe the file of a model whose blocks are those of "llama".

    n_kv_heads: the default of num_key_value_heads; None for as many as query heads. more: keys of variants.
    theta, tied, activation: the architecture's defaults of rope_theta and tie_word_embeddings, and its hidden_act.
    also: rules for further tensors.
    """
    checkpoint.expect(hidden_act=activation)
    sizes = read_sizes(checkpoint, n_kv_heads=n_kv_heads)
    rope = read_rope(checkpoint, "linear", "llama3", "yarn", theta=theta)
    keys = sizes.keys() | {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim}
    if checkpoint.config.get("sliding_window") is not None:
        # only the first Mistral; llama.cpp's converter writes no key, so that its readers ignore the window
        keys["attention.sliding_window"] = checkpoint.integer("sliding_window")
    also = also or Rules()
    biases = checkpoint.biases(attention_bias=["attn_*"], mlp_bias=["ffn_gate", "ffn_up", "ffn_down"])
    rules = replace(
        also,
        required=[*biases, *also.required],
        # RoPE pairs (2i, 2i + 1) in GGUF's "llama", but (i, i + head_dim / 2) in transformers
        recipes={
            f"{name}.{kind}": interleave(n)
            for name, n in (("attn_q", sizes.n_heads), ("attn_k", sizes.n_kv_heads))
            for kind in ("weight", "bias")
        }
        | dict(also.recipes),
        constants=rope.llama3_factors(sizes.head_dim) | dict(also.constants),
    )
    return make_layout(checkpoint, arch, keys | more | rope.keys(), rules, vocab=sizes.vocab, tied=tied)
