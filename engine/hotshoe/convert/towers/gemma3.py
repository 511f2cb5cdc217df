"""Convert Gemma 3's encoder of pictures, SigLIP."""

from __future__ import annotations

import math

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Recipe,
    Rules,
    make_tower_layout,
    plus,
    read_preprocessor,
    tower_keys,
)
from hotshoe.convert.towers._siglip import SIGLIP_BIASES, SIGLIP_NAMES

__all__ = ["describe"]

_STARTS = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
_POOL = 4  # patches on each side that become one row: the default of readers


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision(*(f"{start}vision_model." for start in _STARTS), *_STARTS)
    vision.expect(hidden_act="gelu_pytorch_tanh")
    if read_preprocessor(checkpoint).get("do_pan_and_scan"):
        raise checkpoint.refusal("do_pan_and_scan is true; a file cannot say that pictures are cut")
    keys = tower_keys(checkpoint, vision)
    keys |= {"use_gelu": True, "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6)}
    side = keys["vision.image_size"] // keys["vision.patch_size"]
    pool = side // max(1, math.isqrt(checkpoint.integer("mm_tokens_per_image", 256)))
    if pool != _POOL:
        keys["vision.projector.scale_factor"] = pool
    names: Names = {"mm_input_projection_weight": "mm.input_projection", "mm_soft_emb_norm": "mm.soft_emb_norm"}
    recipes = {
        "mm.soft_emb_norm.weight": plus(1.0),
        "v.patch_embd.weight": Recipe(full_precision=True),
        "mm.input_projection.weight": Recipe(full_precision=False),
    }
    rules = Rules(names=SIGLIP_NAMES | names, recipes=recipes, required=SIGLIP_BIASES, ignored=("head.",))
    return make_tower_layout(checkpoint, vision, "gemma3", keys, rules)
