"""Convert the text models of Idefics3 and SmolVLM, which are Llama."""

from __future__ import annotations

from dataclasses import replace

from hotshoe.convert import Checkpoint, FileLayout
from hotshoe.convert.llama import describe_llama

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text()
    tensors = {name.replace("model.text_model.", "model.", 1): tensor for name, tensor in text.tensors.items()}
    return describe_llama(replace(text, tensors=tensors), None, {})
