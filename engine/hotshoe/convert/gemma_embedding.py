"""Convert EmbeddingGemma: Gemma 3 without a causal mask, and the matrices after pooling.

llama.cpp's converter writes these matrices only on request; without them, the vectors are not those of the model.
"""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout
from hotshoe.convert.gemma3 import describe_gemma3

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("use_bidirectional_attention", False, True)
    keys: dict[str, int] = {}
    for part in checkpoint.sentence.dense:
        matrix, name = checkpoint.tensors.get(f"{part}.linear.weight"), f"dense_{part[:1]}"
        if matrix is not None:
            keys |= {f"{name}_feat_out": matrix.shape[0], f"{name}_feat_in": matrix.shape[1]}
    return describe_gemma3(checkpoint, "gemma-embedding", keys)
