"""Refuse to convert the text model of Ultravox: its folders have none."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Raise ConversionError: a folder of Ultravox has no text model."""
    name = checkpoint.config.get("text_model_id")
    raise checkpoint.refusal(
        "Ultravox is an encoder of sounds for a text model, which is not in this folder",
        hint=f"convert the folder of {name if isinstance(name, str) else 'its text model'}; and this one with --mmproj",
    )
