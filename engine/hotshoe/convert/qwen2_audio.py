"""Convert the text model of Qwen2-Audio, which is Qwen 2."""

from __future__ import annotations

from dataclasses import replace

from hotshoe.convert import Checkpoint, FileLayout, Settings, read_rope
from hotshoe.convert.qwen2 import describe_qwen2

__all__ = ["describe", "text_model"]

# what config.json leaves out: the defaults of transformers' Qwen2Config
_DEFAULTS = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6} | {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
}


def text_model(checkpoint: Checkpoint) -> Checkpoint:
    """The text model, with what config.json leaves out."""
    text = checkpoint.text()
    return replace(text, config=Settings(_DEFAULTS | text.config))


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = text_model(checkpoint)
    return describe_qwen2(text, "qwen2", read_rope(text, "linear", "yarn"), {})
