"""Convert the encoders of pictures of what transformers calls Llava: CLIP or Pixtral's."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_tower_layout, tower_keys
from hotshoe.convert.llava import text_model
from hotshoe.convert.towers import pixtral
from hotshoe.convert.towers._siglip import SIGLIP_BIASES, SIGLIP_NAMES

__all__ = ["describe"]

_NAMES = {name: row for name, row in SIGLIP_NAMES.items() if row != "v.post_ln"} | {
    "embeddings.class_embedding": "v.class_embd",
    "pre_layrnorm": "v.pre_ln",
    "linear_1": "mm.0",
    "linear_2": "mm.2",
}
_BIASES = [*(name for name in SIGLIP_BIASES if "post_ln" not in name), "v.pre_ln.bias", "mm.0.bias", "mm.2.bias"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision(*(f"{start}vision_model." for start in pixtral.STARTS), *pixtral.STARTS)
    if vision.config.get("model_type") == "pixtral":
        return pixtral.describe(checkpoint)
    vision.require("model_type", None, "clip_vision_model")
    vision.expect(hidden_act="quick_gelu")
    checkpoint.expect(projector_hidden_act="gelu", vision_feature_select_strategy="default")
    layer, n_layers = checkpoint.config.get("vision_feature_layer", -2), vision.integer("num_hidden_layers")
    if not isinstance(layer, int) or not -n_layers <= layer < 0:
        raise checkpoint.invalid("vision_feature_layer", layer, f"a number from -{n_layers} to -1")
    vision.config["num_hidden_layers"] = n = n_layers + 1 + layer
    keys = tower_keys(checkpoint, vision, text_model(checkpoint)) | {
        "has_text_encoder": False,
        "has_llava_projector": True,
        "use_gelu": False,
        "vision.feature_layer": [n],
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-5),
    }
    last = tuple(f"{start}layers.{i}." for i in range(n, n_layers) for start in ("", "encoder."))
    rules = Rules(names=_NAMES, required=_BIASES, ignored=("post_layernorm.", *last))
    return make_tower_layout(checkpoint, vision, "mlp", keys, rules)
