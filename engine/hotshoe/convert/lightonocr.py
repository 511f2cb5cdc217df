"""Convert the text model of LightOnOCR, which is Qwen 3."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, qwen3

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text()
    # what the whole model's config says is what counts
    text.config["tie_word_embeddings"] = checkpoint.config.get("tie_word_embeddings", True)
    return qwen3.describe(text)
