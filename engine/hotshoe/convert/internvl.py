"""Convert the text models of InternVL 2.5 to 3.5."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, find_converter

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model, with the converter of its family. Raises as that does, and UnknownArchitectureError."""
    text = checkpoint.text()
    text.config["architectures"] = checkpoint.text_settings.get("architectures")
    if text.architecture == checkpoint.architecture:
        raise text.invalid("architectures", text.architecture, "that of the text model, in text_config or llm_config")
    return find_converter(text)(text)
