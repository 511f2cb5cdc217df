"""Convert Qwen2 and Qwen2.5."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Rope, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe", "describe_qwen2"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_qwen2(checkpoint, "qwen2", read_rope(checkpoint, "linear", "yarn"), {})


def describe_qwen2(checkpoint: Checkpoint, arch: str, rope: Rope, more: dict[str, Any]) -> FileLayout:
    """Describe the file of a model that ``arch`` names. more: keys of variants."""
    checkpoint.expect(hidden_act="silu", use_sliding_window=False)
    sizes = read_sizes(checkpoint)
    rules = Rules(required=("attn_q.bias", "attn_k.bias", "attn_v.bias"))
    return make_layout(checkpoint, arch, sizes.keys() | more | rope.keys(), rules, vocab=sizes.vocab)
