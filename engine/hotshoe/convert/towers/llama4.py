"""Convert Llama 4's encoder of pictures."""

from __future__ import annotations

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Rules,
    expect_of_processor,
    make_tower_layout,
    read_preprocessor,
    refuse_other_rope,
    tower_keys,
)
from hotshoe.towers.llama4 import MAX_TILES

__all__ = ["describe"]

_NAMES: Names = {
    "patch_embedding.linear": "v.patch_embd",
    "class_embedding": "v.class_embd",
    "positional_embedding_vlm": "v.position_embd.weight",
    "layernorm_pre": "v.pre_ln",
    "layernorm_post": "v.post_ln",
    "layers.input_layernorm": "ln1",
    "layers.post_attention_layernorm": "ln2",
    "layers.self_attn.o_proj": "attn_out",
    "vision_adapter.mlp.fc1": "mm.model.mlp.1",
    "vision_adapter.mlp.fc2": "mm.model.mlp.2",
    "linear_1": "mm.model.fc",
}
_BIASED = ("ln1", "ln2", "attn_q", "attn_k", "attn_v", "attn_out", "ffn_up", "ffn_down", "v.pre_ln", "v.post_ln")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision("vision_model.", "multi_modal_projector.")
    vision.expect(hidden_act="gelu")
    vision.expect(norm_eps=1e-5)  # the encoder's norms have this one, whatever config.json says
    vision.expect(pixel_shuffle_ratio=0.5, multi_modal_projector_bias=False)
    refuse_other_rope(vision)
    expect_of_processor(checkpoint, read_preprocessor(checkpoint), max_patches=MAX_TILES, resize_to_max_canvas=False)
    keys = tower_keys(checkpoint, vision) | {
        "use_gelu": True,
        "vision.attention.layer_norm_epsilon": 1e-5,
        "vision.projector.scale_factor": 2,
    }
    rules = Rules(names=_NAMES, required=[f"{name}.bias" for name in _BIASED])
    return make_tower_layout(checkpoint, vision, "llama4", keys, rules)
