"""Convert the text model of PaddleOCR-VL."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text()
    text.expect(hidden_act="silu", use_bias=False)
    sizes, rope = read_sizes(text, head_dim=128), read_rope(text, theta=500_000.0)
    keys = sizes.keys() | rope.keys() | {"rope.dimension_sections": rope.sections(16, 24, 24, interleaved=False)}
    return make_layout(text, "paddleocr", keys, vocab=sizes.vocab, tied=True)
