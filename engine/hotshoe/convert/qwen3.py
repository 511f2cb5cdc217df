"""Convert Qwen3: norms on queries and keys, and no biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import Rules, make_layout, read_rope, read_sizes

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_act", "silu", "silu")
    checkpoint.require("use_sliding_window", False, False)
    sizes, rope = read_sizes(checkpoint, head_dim=128), read_rope(checkpoint, "linear", "yarn")
    rules = Rules(required=checkpoint.biases(attention_bias=("attn_q", "attn_k", "attn_v", "attn_output")))
    return make_layout(checkpoint, "qwen3", sizes.keys() | rope.keys(), rules, vocab=sizes.vocab)
