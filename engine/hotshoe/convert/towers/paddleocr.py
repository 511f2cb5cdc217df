"""Convert the encoder of pictures of PaddleOCR-VL."""

from __future__ import annotations

import math

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Rules,
    make_tower_layout,
    processor_count,
    processor_edge,
    read_preprocessor,
    tower_keys,
)
from hotshoe.convert.towers._siglip import SIGLIP_BIASES, SIGLIP_NAMES

__all__ = ["describe"]

_STARTS = ("model.visual.vision_model.", "visual.vision_model.", "model.projector.", "mlp_AR.")
_NAMES: Names = {"pre_norm": "mm.input_norm", "linear_1": "mm.1", "linear_2": "mm.2"}
_UNUSED = ("head.", "packing_position_embedding", "embeddings.packing_position_embedding")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision(*_STARTS)
    vision.expect(hidden_act="gelu_pytorch_tanh", spatial_merge_size=2)
    smallest, largest = _limits(checkpoint)
    # it reads pictures of any size; llama.cpp's converter writes this one
    vision.config["image_size"] = math.isqrt(largest)
    keys = tower_keys(checkpoint, vision) | {
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.image_min_pixels": smallest,
        "vision.image_max_pixels": largest,
    }
    required = [*SIGLIP_BIASES, *(f"{name}.bias" for name in _NAMES.values())]
    rules = Rules(names=SIGLIP_NAMES | _NAMES, required=required, ignored=_UNUSED)
    return make_tower_layout(checkpoint, vision, "paddleocr", keys, rules)


def _limits(checkpoint: Checkpoint) -> tuple[int, int]:
    """The fewest and the most pixels of a picture. transformers 5 calls them edges."""
    processor = read_preprocessor(checkpoint)
    smallest, largest = (
        processor_count(checkpoint, processor, name, processor_edge(checkpoint, processor, "size", edge))
        for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge"))
    )
    return smallest, largest
