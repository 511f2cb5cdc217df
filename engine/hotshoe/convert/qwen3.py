"""Convert Qwen3: norms on queries and keys, and no biases."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Rope, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe", "describe_qwen3"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_qwen3(checkpoint, "qwen3", read_rope(checkpoint, "linear", "yarn"), {})


def describe_qwen3(checkpoint: Checkpoint, arch: str, rope: Rope, more: dict[str, Any]) -> FileLayout:
    """Describe the file of a model that ``arch`` names. more: keys of variants."""
    checkpoint.expect(hidden_act="silu", use_sliding_window=False)
    sizes = read_sizes(checkpoint, head_dim=128)
    rules = Rules(required=checkpoint.biases(attention_bias=("attn_q", "attn_k", "attn_v", "attn_output")))
    return make_layout(checkpoint, arch, sizes.keys() | more | rope.keys(), rules, vocab=sizes.vocab)
