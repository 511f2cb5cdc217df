"""Convert SmolLM3: Llama without RoPE in every fourth layer."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout
from hotshoe.convert.llama import describe_llama

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(use_sliding_window=False)
    usual = [int((i + 1) % 4 != 0) for i in range(checkpoint.layers())]
    checkpoint.require("no_rope_layers", None, usual)
    checkpoint.expect(no_rope_layer_interval=4)
    return describe_llama(checkpoint, 4, {}, arch="smollm3", theta=2_000_000.0, tied=True)
