"""Convert Gemma 4's encoder of pictures. Sound is left out."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Recipe,
    Rules,
    make_tower_layout,
    processor_count,
    read_preprocessor,
    tower_keys,
)

__all__ = ["describe", "row_keys"]

_NAMES: Names = {
    "patch_embedder.input_proj": "v.patch_embd",
    "patch_embedder.position_embedding_table": "v.position_embd.weight",
    "layers.input_layernorm": "ln1",
    "layers.post_attention_layernorm": "attn_post_norm",
    "layers.pre_feedforward_layernorm": "ln2",
    "layers.post_feedforward_layernorm": "ffn_post_norm",
    "embedding_projection": "mm.input_projection",
}
_LINEAR = {
    **{f"layers.self_attn.{part}_proj": f"attn_{part}" for part in "qkv"},
    "layers.self_attn.o_proj": "attn_out",
    **{f"layers.mlp.{part}_proj": f"ffn_{part}" for part in ("gate", "up", "down")},
}
_CLIPS = ("input_min", "input_max", "output_min", "output_max")
_CAUSAL = (1536, 2560)  # sizes of models whose pictures are causal: readers know them by it


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision("model.vision_tower.", "model.embed_vision.")
    vision.expect(hidden_activation="gelu_pytorch_tanh")
    vision.config.setdefault("image_size", 224)  # it reads pictures of any size; llama.cpp's converter writes this one
    keys = tower_keys(checkpoint, vision) | row_keys(checkpoint, vision)
    _check_causal(checkpoint)
    keys["vision.attention.layer_norm_epsilon"] = vision.number("rms_norm_eps", 1e-6)
    keys["vision.projector_type"] = "gemma4v"  # llama.cpp's files have another one for sound
    vision.expect(num_key_value_heads=keys["vision.attention.head_count"])
    clipped, standard = bool(vision.config.get("use_clipped_linears")), bool(vision.config.get("standardize"))
    names = _NAMES | {f"{name}.linear": to for name, to in _LINEAR.items()}
    required = []
    if clipped:
        names |= {f"{name}.{limit}": f"{to}.{limit}" for name, to in _LINEAR.items() for limit in _CLIPS}
        required += [f"{to}.{limit}" for to in _LINEAR.values() for limit in _CLIPS]
    if standard:
        names |= {"std_bias": "v.std_bias", "std_scale": "v.std_scale"}
        required += ["v.std_bias", "v.std_scale"]
    dim, patch = keys["vision.embedding_length"], keys["vision.patch_size"]
    as_image = Recipe(lambda v: v.reshape(dim, patch, patch, 3).transpose(0, 3, 1, 2), (dim, patch * patch * 3))
    rules = Rules(names=names, recipes={"v.patch_embd.weight": as_image}, required=required)
    return make_tower_layout(checkpoint, vision, "gemma4v", keys, rules)


def _check_causal(checkpoint: Checkpoint) -> None:
    """Raise ModelFileError if readers, who know by the model's size whether pictures are causal, would be wrong."""
    text = checkpoint.text()
    causal = text.config.get("use_bidirectional_attention") != "vision"
    if causal != (text.integer("hidden_size") in _CAUSAL):
        raise text.invalid(
            "use_bidirectional_attention",
            text.config.get("use_bidirectional_attention"),
            f"null for models of a hidden_size of {_CAUSAL}, and 'vision' for all others: files do not say it",
        )


def row_keys(checkpoint: Checkpoint, vision: Checkpoint) -> dict[str, Any]:
    """The keys of how many patches become a row, and how many rows a picture has, if not as many as readers assume."""
    keys: dict[str, Any] = {}
    if (pool := vision.integer("pooling_kernel_size", 3)) != 3:
        keys["vision.projector.scale_factor"] = pool
    if (n := processor_count(checkpoint, read_preprocessor(checkpoint), "max_soft_tokens", 280)) != 280:
        keys["vision.image_max_pixels"] = n * (vision.integer("patch_size") * pool) ** 2
    return keys
