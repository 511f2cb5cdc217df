"""Convert the text model of Janus Pro, which is Llama. What draws pictures is left out."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout
from hotshoe.convert.llama import describe_llama

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model. Raises as the converter of Llama does."""
    return describe_llama(checkpoint.text(), None, {})
