"""Convert Granite: Llama with scales."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout
from hotshoe.convert.granitemoe import scale_keys
from hotshoe.convert.llama import describe_llama

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_llama(checkpoint, None, scale_keys(checkpoint), arch="granite")
