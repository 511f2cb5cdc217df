"""Convert the text models of what transformers calls Llava: Llama or Mistral."""

from __future__ import annotations

from dataclasses import replace

from hotshoe.convert import Checkpoint, FileLayout, Settings
from hotshoe.convert.llama import describe_llama

__all__ = ["describe", "text_model"]

# what config.json leaves out: the defaults of transformers' LlamaConfig and MistralConfig
_SHARED = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6}
_DEFAULTS = {
    "llama": _SHARED | {"vocab_size": 32_000, "intermediate_size": 11_008, "max_position_embeddings": 2048},
    "mistral": _SHARED
    | {"vocab_size": 32_000, "intermediate_size": 14_336, "max_position_embeddings": 131_072, "num_key_value_heads": 8},
}


def text_model(checkpoint: Checkpoint) -> Checkpoint:
    """The text model, with what config.json leaves out. Raises ConversionError for other families."""
    kind = checkpoint.text_settings.get("model_type")
    if kind not in _DEFAULTS:
        raise checkpoint.refusal(f"its text model is {kind!r:.40}; hotshoe converts Llava with llama or mistral")
    text = checkpoint.text()
    return replace(text, config=Settings(_DEFAULTS[kind] | text.config))


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model. Raises ModelFileError if config.json is invalid, ConversionError if it is of another
    family than Llama and Mistral.
    """
    return describe_llama(text_model(checkpoint), None, {})
