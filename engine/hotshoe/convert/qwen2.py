"""Convert Qwen2 and Qwen2.5."""

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
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "yarn")
    rules = Rules(required=("attn_q.bias", "attn_k.bias", "attn_v.bias"))
    return make_layout(checkpoint, "qwen2", sizes.keys() | rope.keys(), rules, vocab=sizes.vocab)
