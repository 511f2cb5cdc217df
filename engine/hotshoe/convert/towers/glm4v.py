"""Convert the encoder of pictures of GLM-4.1V, GLM-4.5V and GLM-OCR."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Names, Recipe, Rules, make_tower_layout, tower_keys

__all__ = ["describe"]

_NAMES: Names = {
    "patch_embed.proj.weight": ("v.patch_embd.weight", "v.patch_embd.weight.1"),
    "patch_embed.proj.bias": "v.patch_embd.bias",
    "layers.norm1": "ln1",
    "layers.norm2": "ln2",
    "layers.attn.qkv": "attn_qkv",
    "layers.attn.proj": "attn_out",
    "post_layernorm": "v.post_ln",
    "downsample": "mm.patch_merger",
    "merger.proj": "mm.model.fc",
    "merger.post_projection_norm": "mm.post_norm",
    "merger.gate_proj": "mm.gate",
    "merger.up_proj": "mm.up",
    "merger.down_proj": "mm.down",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision("visual.", "model.visual.")
    vision.expect(hidden_act="silu", in_channels=3, temporal_patch_size=2, spatial_merge_size=2)
    keys = tower_keys(checkpoint, vision, layers="depth", heads="num_heads")
    keys |= {"use_silu": True, "vision.attention.layer_norm_epsilon": vision.number("rms_norm_eps", 1e-5)}
    names, biased = dict(_NAMES), ["attn_qkv"]
    if checkpoint.architecture == "GlmOcrForConditionalGeneration":
        names |= {"layers.attn.q_norm": "attn_q_norm", "layers.attn.k_norm": "attn_k_norm"}
        required = ["attn_q_norm.weight", "attn_k_norm.weight"]
        biased += ["attn_out", "ffn_gate", "ffn_up", "ffn_down"]
    else:
        names |= {"post_conv_layernorm": "v.norm_embd", "embeddings.position_embedding": "v.position_embd"}
        required = ["v.norm_embd.weight", "v.position_embd.weight"]
    required += ["mm.post_norm.bias", *vision.biases(attention_bias=biased)]
    dim, patch = keys["vision.embedding_length"], keys["vision.patch_size"]
    stored = (dim, 3, 2, patch, patch)
    recipes = {
        "v.patch_embd.weight": Recipe(lambda value: value[:, :, 0], stored),
        "v.patch_embd.weight.1": Recipe(lambda value: value[:, :, 1], stored, full_precision=False),
    }
    rules = Rules(names=names, recipes=recipes, required=required)
    return make_tower_layout(checkpoint, vision, "glm4v", keys, rules)
