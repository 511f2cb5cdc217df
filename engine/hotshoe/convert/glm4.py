"""Convert GLM-4: GLM-4-9B, which GGUF calls "chatglm", and GLM-4-0414."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import Rules, make_layout, read_rope, read_sizes

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe", "describe_chatglm"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return _describe(checkpoint, "glm4")


def describe_chatglm(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return _describe(checkpoint, "chatglm")


def _describe(checkpoint: Checkpoint, arch: str) -> FileLayout:
    checkpoint.expect(hidden_act="silu")
    sizes, rope = read_sizes(checkpoint, head_dim=128, n_kv_heads=2), read_rope(checkpoint)
    # readers of "chatglm" derive the size of heads, unless a file states it
    keys = sizes.keys(heads=arch == "glm4" or sizes.q != sizes.dim)
    keys |= rope.keys() | {"rope.dimension_count": rope.n_rotated(sizes.head_dim, 0.5)}
    has_bias = checkpoint.config.get("attention_bias", True)
    rules = Rules(required=[f"attn_{x}.bias" for x in "qkv"] if has_bias else [])
    return make_layout(checkpoint, arch, keys, rules, vocab=sizes.vocab)
