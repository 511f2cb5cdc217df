"""Convert the text models of Qwen2-VL and Qwen2.5-VL."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, read_rope
from hotshoe.convert.qwen2 import describe_qwen2

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text()
    rope = read_rope(text, "linear", "yarn")
    return describe_qwen2(
        text, "qwen2vl", rope, {"rope.dimension_sections": rope.sections(16, 24, 24, interleaved=False)}
    )
