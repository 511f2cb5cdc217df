"""Convert the text model of Voxtral, which is Llama."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout
from hotshoe.convert.llama import describe_llama

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_llama(checkpoint.text(), None, {})
