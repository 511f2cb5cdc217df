"""Convert the encoder of pictures of LFM2-VL."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Recipe,
    Rules,
    expect_of_processor,
    make_tower_layout,
    processor_count,
    read_preprocessor,
    tower_keys,
)
from hotshoe.convert.towers._siglip import SIGLIP_BIASES, SIGLIP_NAMES
from hotshoe.towers import lfm2

__all__ = ["describe"]

_STARTS = (
    *("model.vision_tower.vision_model.", "vision_tower.vision_model.", "model.vision_tower.", "vision_tower."),
    *("model.multi_modal_projector.", "multi_modal_projector."),
)
_ROWS = (64, 256)  # of a picture that is not cut: what readers assume
_FIXED = {"min_tiles": lfm2.FEWEST, "max_tiles": lfm2.MOST, "tile_size": lfm2.TILE, "use_thumbnail": True} | {
    "max_pixels_tolerance": lfm2.TOLERANCE,
    "do_image_splitting": True,
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision(*_STARTS)
    vision.expect(hidden_act="gelu_pytorch_tanh")
    checkpoint.expect(projector_hidden_act="gelu", vision_feature_layer=-1)
    vision.config["image_size"] = 256  # it reads pictures of any size; llama.cpp's converter writes this one
    merge = checkpoint.integer("downsample_factor", 2)
    keys = tower_keys(checkpoint, vision) | {
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": merge,
    }
    dim, patch = keys["vision.embedding_length"], keys["vision.patch_size"]
    keys |= _limits(checkpoint, (patch * merge) ** 2)
    names, biased = SIGLIP_NAMES | {"linear_1": "mm.1", "linear_2": "mm.2"}, ["mm.1", "mm.2"]
    required = [
        *SIGLIP_BIASES,
        *([f"{name}.bias" for name in biased] if checkpoint.config.get("projector_bias", True) else []),
    ]
    if checkpoint.config.get("projector_use_layernorm", True):
        names |= {"layer_norm": "mm.input_norm"}
        required += ["mm.input_norm.weight", "mm.input_norm.bias"]
    as_image = Recipe(lambda v: v.reshape(dim, patch, patch, 3).transpose(0, 3, 1, 2), (dim, patch * patch * 3))
    rules = Rules(names=names, recipes={"v.patch_embd.weight": as_image}, required=required, ignored=("head.",))
    return make_tower_layout(checkpoint, vision, "lfm2", keys, rules)


def _limits(checkpoint: Checkpoint, pixels: int) -> dict[str, Any]:
    """The keys of the limits of a picture's size, where they differ from what readers assume. pixels: of a row."""
    processor = read_preprocessor(checkpoint)
    expect_of_processor(checkpoint, processor, **_FIXED)
    names = ("min_image_tokens", "max_image_tokens")
    rows = tuple(processor_count(checkpoint, processor, name, n) for name, n in zip(names, _ROWS, strict=True))
    if rows[0] > rows[1]:
        raise checkpoint.refusal(f"min_image_tokens is {rows[0]}, more than max_image_tokens, {rows[1]}")
    if rows == _ROWS:
        return {}
    return {f"vision.image_{which}_pixels": n * pixels for which, n in zip(("min", "max"), rows, strict=True)}
