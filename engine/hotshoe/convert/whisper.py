"""Convert the text models of what reads sounds with Whisper's encoder: Voxtral, Qwen2-Audio and Ultravox."""

from __future__ import annotations

from dataclasses import replace

from hotshoe.convert import Checkpoint, FileLayout, Settings, read_rope
from hotshoe.convert.llama import describe_llama
from hotshoe.convert.qwen2 import describe_qwen2

__all__ = ["describe_qwen2_audio", "describe_ultravox", "describe_voxtral", "qwen2_text"]

# what config.json leaves out: the defaults of transformers' Qwen2Config
_QWEN2 = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6} | {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "max_position_embeddings": 32_768,
    "num_key_value_heads": 32,
}


def qwen2_text(checkpoint: Checkpoint) -> Checkpoint:
    """The text model of Qwen2-Audio."""
    text = checkpoint.text()
    return replace(text, config=Settings(_QWEN2 | text.config))


def describe_voxtral(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express
    it.
    """
    return describe_llama(checkpoint.text(), None, {})


def describe_qwen2_audio(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model. Raises as ``describe_voxtral`` does."""
    text = qwen2_text(checkpoint)
    return describe_qwen2(text, "qwen2", read_rope(text, "linear", "yarn"), {})


def describe_ultravox(checkpoint: Checkpoint) -> FileLayout:
    """Raise ConversionError: a folder of Ultravox has no text model."""
    name = checkpoint.config.get("text_model_id")
    raise checkpoint.refusal(
        "Ultravox is an encoder of sounds for a text model, which is not in this folder",
        hint=f"convert the folder of {name if isinstance(name, str) else 'its text model'}; and this one with --mmproj",
    )
