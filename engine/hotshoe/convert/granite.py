"""Convert Granite: Llama with scales."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert.llama import describe_llama

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["SCALES", "describe"]

SCALES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    keys = {key: checkpoint.number(name, 1.0) for name, key in SCALES.items()}
    return describe_llama(checkpoint, None, keys, arch="granite")
