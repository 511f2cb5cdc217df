"""Convert the encoder of pictures of MiniCPM-V 4.6."""

from __future__ import annotations

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Rules,
    expect_of_processor,
    make_tower_layout,
    read_preprocessor,
    tower_keys,
)
from hotshoe.convert.towers._siglip import SIGLIP_BIASES, SIGLIP_NAMES
from hotshoe.towers.minicpmv import MAX_SLICES

__all__ = ["describe"]

_NAMES: Names = {
    "vit_merger.layer_norm1": "v.vit_merger.ln1",
    **{f"vit_merger.self_attn.{part}_proj": f"v.vit_merger.attn_{part}" for part in ("q", "k", "v", "out")},
    "vit_merger.pre_norm": "v.vit_merger.ds_ln",
    "vit_merger.linear_1": "v.vit_merger.ds_ffn_up",
    "vit_merger.linear_2": "v.vit_merger.ds_ffn_down",
    "mlp.0.pre_norm": "mm.input_norm",
    "mlp.0.linear_1": "mm.up",
    "mlp.0.linear_2": "mm.down",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision, processor = checkpoint.vision("model.vision_tower.", "model.merger."), read_preprocessor(checkpoint)
    vision.expect(hidden_act="gelu_pytorch_tanh", window_kernel_size=[2, 2])
    checkpoint.expect(merge_kernel_size=[2, 2], merger_times=1, drop_vision_last_layer=False, downsample_mode="16x")
    expect_of_processor(checkpoint, processor, downsample_mode="16x", max_slice_nums=MAX_SLICES, slice_mode=True)
    vision.config["image_size"] = processor.get("scale_resolution", 448)
    keys = tower_keys(checkpoint, vision) | {
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
        "vision.projector.scale_factor": 4,
        "vision.wa_layer_indexes": [checkpoint.count("insert_layer_id", 6)],
    }
    required = [*SIGLIP_BIASES, *(f"{name}.bias" for name in _NAMES.values())]
    rules = Rules(names=SIGLIP_NAMES | _NAMES, required=required, ignored=("head.",))
    return make_tower_layout(checkpoint, vision, "minicpmv4_6", keys, rules)
