"""Convert what Gemma 4 12B has in place of an encoder of pictures."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Names, Recipe, Rules, make_tower_layout, tower_keys
from hotshoe.convert.towers.gemma4 import row_keys

__all__ = ["describe"]

_NAMES: Names = {
    "patch_ln1": "v.patch_norm.1",
    "patch_dense": "v.patch_embd",
    "patch_ln2": "v.patch_norm.2",
    "pos_embedding": "v.position_embd.weight",
    "pos_norm": "v.patch_norm.3",
    "embedding_projection": "mm.input_projection",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision("model.vision_embedder.", "model.embed_vision.")
    checkpoint.text().expect(use_bidirectional_attention="vision")
    # llama.cpp's converter writes these, too
    none = dict.fromkeys(("intermediate_size", "num_hidden_layers", "num_attention_heads"), 0)
    vision.config.update({"image_size": 224} | none)
    dim = vision.integer("mm_embed_dim")
    vision.expect(output_proj_dims=dim)
    keys = tower_keys(checkpoint, vision, dim="mm_embed_dim") | row_keys(checkpoint, vision)
    keys |= {
        "vision.attention.layer_norm_epsilon": vision.number("rms_norm_eps", 1e-6),
        "vision.projector_type": "gemma4uv",  # llama.cpp's files have another one for sound
    }
    side = vision.integer("patch_size") * vision.integer("pooling_kernel_size", 3)
    n_positions = vision.integer("mm_posemb_size")
    # channels first
    by_channel = Recipe(lambda v: v.reshape(-1, side**2, 3).swapaxes(1, 2).reshape(v.shape))
    rules = Rules(
        names=_NAMES,
        recipes={
            "v.patch_embd.weight": by_channel,
            "v.patch_norm.1.weight": by_channel,
            "v.patch_norm.1.bias": by_channel,
            "v.position_embd.weight": Recipe(lambda v: v.swapaxes(0, 1), (n_positions, 2, dim)),
        },
        rows={"v.position_embd.weight": (2, n_positions)},
        required=["v.patch_embd.bias", *(f"v.patch_norm.{i}.bias" for i in (1, 2, 3))],
    )
    return make_tower_layout(checkpoint, vision, "gemma4uv", keys, rules)
