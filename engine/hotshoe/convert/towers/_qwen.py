"""What the encoders of pictures of Qwen2-VL to Qwen3-VL share."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Names, Recipe, Rules, make_tower_layout

__all__ = ["BLOCK_NAMES", "STARTS", "make_qwen_layout"]

# how the names of the encoder's tensors begin
STARTS = ("visual.", "model.visual.")
BLOCK_NAMES: Names = {
    "patch_embed.proj.weight": ("v.patch_embd.weight", "v.patch_embd.weight.1"),
    "layers.norm1": "ln1",
    "layers.norm2": "ln2",
    "layers.attn.qkv": "attn_qkv",
    "layers.attn.proj": "attn_out",
}


def make_qwen_layout(
    checkpoint: Checkpoint, vision: Checkpoint, kind: str, keys: dict[str, Any], names: Names, required: list[str]
) -> FileLayout:
    """Describe the file, as ``make_tower_layout`` does. It adds the epsilon of norms. Raises as that does."""
    vision.expect(in_channels=3, temporal_patch_size=2, spatial_merge_size=2)
    dim, patch = keys["vision.embedding_length"], keys["vision.patch_size"]
    stored = (dim, 3, 2, patch, patch)
    recipes = {
        "v.patch_embd.weight": Recipe(lambda value: value[:, :, 0], stored),
        "v.patch_embd.weight.1": Recipe(lambda value: value[:, :, 1], stored, full_precision=False),
    }
    keys = keys | {"vision.attention.layer_norm_epsilon": 1e-6}  # of all of them; config.json does not say it
    return make_tower_layout(checkpoint, vision, kind, keys, Rules(names=names, recipes=recipes, required=required))
