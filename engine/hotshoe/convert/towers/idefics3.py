"""Convert the encoder of pictures of Idefics3 and SmolVLM."""

from __future__ import annotations

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Recipe,
    Rules,
    make_tower_layout,
    processor_edge,
    read_preprocessor,
    tower_keys,
)
from hotshoe.convert.towers._siglip import SIGLIP_BIASES, SIGLIP_NAMES

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision("model.vision_model.", "model.connector.")
    # what config.json leaves out
    for name, value in (("hidden_size", 1152), ("num_attention_heads", 16), ("intermediate_size", 3072)):
        vision.config.setdefault(name, value)
    vision.expect(hidden_act="gelu_pytorch_tanh")
    processor, keys = read_preprocessor(checkpoint), tower_keys(checkpoint, vision)
    image_size = keys["vision.image_size"]
    if not processor.get("do_image_splitting", True):
        raise checkpoint.refusal("do_image_splitting is false; a file cannot say that pictures are not cut")
    if processor_edge(checkpoint, processor, "max_image_size", "longest_edge") not in (None, image_size):
        raise checkpoint.refusal(f"max_image_size is not image_size, {image_size}; a file has one of them")
    longest = processor_edge(checkpoint, processor, "size", "longest_edge")
    keys |= {
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": checkpoint.integer("scale_factor", 2),
        "vision.preproc_image_size": image_size if longest is None else longest,
    }
    rules = Rules(
        names=SIGLIP_NAMES | {"modality_projection.proj": "mm.model.fc"},
        recipes={"v.patch_embd.weight": Recipe(full_precision=True)},
        required=SIGLIP_BIASES,
    )
    return make_tower_layout(checkpoint, vision, "idefics3", keys, rules)
