"""Convert Janus Pro's encoder of pictures."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_tower_layout, tower_keys
from hotshoe.convert.towers._siglip import SIGLIP_BIASES, SIGLIP_NAMES

__all__ = ["describe"]

_NAMES = {name: row for name, row in SIGLIP_NAMES.items() if row != "attn_out"} | {
    "layers.self_attn.projection_layer": "attn_out",
    "fc1": "mm.0",
    "hidden_layers.0": "mm.1",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision("model.vision_model.", "model.aligner.")
    vision.expect(hidden_act="gelu", attention_bias=True, use_qk_norm=False, depth=2)
    ratio = vision.number("mlp_ratio", 4.0)
    vision.config.setdefault("intermediate_size", round(vision.integer("hidden_size") * ratio))
    keys = tower_keys(checkpoint, vision) | {
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
    }
    rules = Rules(names=_NAMES, required=[*SIGLIP_BIASES, "mm.0.bias", "mm.1.bias"])
    return make_tower_layout(checkpoint, vision, "janus_pro", keys, rules)
