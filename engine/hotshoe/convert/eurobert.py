"""Convert encoders with Llama's blocks: EuroBERT and Llama-Embed-Nemotron."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, make_layout, read_rope, read_sizes
from hotshoe.convert.llama import describe_llama

__all__ = ["describe", "describe_llama_embed"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=False, mlp_bias=False)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, theta=250_000.0)
    keys = sizes.keys() | rope.keys() | {"rope.scaling.type": "none", "attention.causal": False}
    return make_layout(checkpoint, "eurobert", keys, vocab=sizes.vocab)


def describe_llama_embed(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of a Llama without a causal mask. Raises as ``describe`` does."""
    return describe_llama(checkpoint, None, {"attention.causal": False}, arch="llama-embed")
