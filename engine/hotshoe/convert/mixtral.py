"""Convert Mixtral: Llama with a mixture of experts in every layer, which GGUF calls "llama" too."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, expert_keys
from hotshoe.convert.llama import describe_llama

__all__ = ["describe"]

_N_KV_HEADS = 8  # default of num_key_value_heads in transformers' MixtralConfig


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return describe_llama(checkpoint, _N_KV_HEADS, expert_keys(checkpoint, "num_local_experts", default=8, used=2))
