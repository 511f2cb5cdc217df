"""Convert the text model of MiniCPM-V 4.6, which is Qwen 3.5."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, qwen35

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model. Raises as the converter of Qwen 3.5 does."""
    return qwen35.describe(checkpoint)
