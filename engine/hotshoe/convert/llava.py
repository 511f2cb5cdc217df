"""Convert models that transformers calls Llava: Llama or Mistral, with the encoder CLIP or Pixtral's."""

from __future__ import annotations

from dataclasses import replace

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_tower_layout, pixtral, tower_keys
from hotshoe.convert._settings import Settings
from hotshoe.convert._siglip import SIGLIP_BIASES, SIGLIP_NAMES
from hotshoe.convert.llama import describe_llama

__all__ = ["describe", "describe_tower"]

# what config.json leaves out: the defaults of transformers' LlamaConfig and MistralConfig
_SHARED = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "rms_norm_eps": 1e-6}
_DEFAULTS = {
    "llama": _SHARED | {"vocab_size": 32_000, "intermediate_size": 11_008, "max_position_embeddings": 2048},
    "mistral": _SHARED
    | {"vocab_size": 32_000, "intermediate_size": 14_336, "max_position_embeddings": 131_072, "num_key_value_heads": 8},
}

_CLIP_NAMES = {name: row for name, row in SIGLIP_NAMES.items() if row != "v.post_ln"} | {
    "embeddings.class_embedding": "v.class_embd",
    "pre_layrnorm": "v.pre_ln",
    "linear_1": "mm.0",
    "linear_2": "mm.2",
}
_CLIP_BIASES = [*(name for name in SIGLIP_BIASES if "post_ln" not in name), "v.pre_ln.bias", "mm.0.bias", "mm.2.bias"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the text model. Raises ModelFileError if config.json is invalid, ConversionError if it is of another
    family than Llama and Mistral.
    """
    inner = checkpoint.config.get("text_config")
    kind = inner.get("model_type") if isinstance(inner, dict) else None
    if kind not in _DEFAULTS:
        raise checkpoint.refusal(f"its text model is {kind!r:.40}; hotshoe converts Llava with llama or mistral")
    text = checkpoint.text(*pixtral.OTHERS)
    return describe_llama(replace(text, config=Settings(_DEFAULTS[kind] | text.config)), None, {})


def describe_tower(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of pictures. Raises as ``describe`` does."""
    vision = checkpoint.vision(*(f"{start}vision_model." for start in pixtral.OTHERS), *pixtral.OTHERS)
    if vision.config.get("model_type") == "pixtral":
        return pixtral.describe_tower(checkpoint)
    vision.require("model_type", None, "clip_vision_model")
    vision.expect(hidden_act="quick_gelu")
    checkpoint.expect(projector_hidden_act="gelu", vision_feature_select_strategy="default")
    layer, n_layers = checkpoint.config.get("vision_feature_layer", -2), vision.integer("num_hidden_layers")
    if not isinstance(layer, int) or not -n_layers <= layer < 0:
        raise checkpoint.invalid("vision_feature_layer", layer, f"a number from -{n_layers} to -1")
    vision.config["num_hidden_layers"] = n = n_layers + 1 + layer
    keys = tower_keys(checkpoint, vision) | {
        "has_text_encoder": False,
        "has_llava_projector": True,
        "use_gelu": False,
        "vision.feature_layer": [n],
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-5),
    }
    last = tuple(f"{start}layers.{i}." for i in range(n, n_layers) for start in ("", "encoder."))
    rules = Rules(names=_CLIP_NAMES, required=_CLIP_BIASES, ignored=("post_layernorm.", *last))
    return make_tower_layout(checkpoint, vision, "mlp", keys, rules)
