"""Convert the encoder of pictures of InternVL 2.5 to 3.5, as its authors publish it and as transformers writes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Names, Rules, make_tower_layout, read_preprocessor, tower_keys

__all__ = ["describe"]

_PUBLISHED = "vision_model."
_STARTS = ("model.vision_tower.", "vision_tower.", "model.multi_modal_projector.", "multi_modal_projector.")
_TILES = (1, 12)  # what readers assume

_NAMES: Names = {  # of transformers
    "embeddings.cls_token": "v.class_embd",
    "embeddings.patch_embeddings.projection": "v.patch_embd",
    "embeddings.position_embeddings": "v.position_embd.weight",
    "layers.attention.q_proj": "attn_q",
    "layers.attention.k_proj": "attn_k",
    "layers.attention.v_proj": "attn_v",
    "layers.attention.projection_layer": "attn_out",
    "layers.layernorm_before": "ln1",
    "layers.layernorm_after": "ln2",
    "layers.lambda_1": "ls1.weight",
    "layers.lambda_2": "ls2.weight",
    "layer_norm": "mm.model.mlp.0",
    "linear_1": "mm.model.mlp.1",
    "linear_2": "mm.model.mlp.3",
}
_NORMS: Names = {"layers.attention.q_norm": "attn_q_norm", "layers.attention.k_norm": "attn_k_norm"}
_PUBLISHED_NAMES: Names = {
    "embeddings.class_embedding": "v.class_embd",
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd.weight",
    "layers.attn.qkv": "attn_qkv",
    "layers.attn.proj": "attn_out",
    "layers.norm1": "ln1",
    "layers.norm2": "ln2",
    "layers.ls1": "ls1.weight",
    "layers.ls2": "ls2.weight",
    "mlp1.0": "mm.model.mlp.0",
    "mlp1.1": "mm.model.mlp.1",
    "mlp1.3": "mm.model.mlp.3",
}
_PUBLISHED_NORMS: Names = {"layers.attn.q_norm": "attn_q_norm", "layers.attn.k_norm": "attn_k_norm"}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    published = checkpoint.architecture == "InternVLChatModel"
    vision = checkpoint.vision(*((_PUBLISHED,) if published else _STARTS))
    if published:
        mlp = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("mlp1.")}
        vision = replace(vision, tensors=vision.tensors | mlp)
    for name in ("image_size", "patch_size"):
        vision.config[name] = _side(vision, name)
    vision.expect(hidden_act="gelu", use_mean_pooling=True, use_absolute_position_embeddings=True)
    checkpoint.expect(projector_hidden_act="gelu", vision_feature_layer=-1)
    checkpoint.expect(vision_feature_select_strategy="default", select_layer=-1, ps_version="v2")
    checkpoint.expect(downsample_ratio=0.5)
    checkpoint.require("force_image_size", None, vision.config["image_size"])
    keys = tower_keys(checkpoint, vision) | _tile_keys(checkpoint, published)
    keys |= {
        "use_gelu": True,
        "vision.projector.scale_factor": 2,
        "vision.attention.layer_norm_epsilon": vision.number("layer_norm_eps", 1e-6),
    }
    return make_tower_layout(checkpoint, vision, "internvl", keys, _rules(vision, published))


def _side(vision: Checkpoint, name: str) -> Any:
    """One side of a square that may have two."""
    value = vision.config.get(name)
    is_square = isinstance(value, list) and len(value) == 2 and value[0] == value[1]
    return value[0] if is_square else value


def _tile_keys(checkpoint: Checkpoint, published: bool) -> dict[str, Any]:
    """Limits of the number of tiles."""
    if published:
        checkpoint.expect(use_thumbnail=True, dynamic_image_size=True)
        names, stated = ("min_dynamic_patch", "max_dynamic_patch"), dict(checkpoint.config)
    else:
        names, stated = ("min_patches", "max_patches"), read_preprocessor(checkpoint)
    limits = tuple(stated.get(name, usual) for name, usual in zip(names, _TILES, strict=True))
    if not all(type(n) is int and 1 <= n <= 64 for n in limits) or limits[0] > limits[1]:
        raise checkpoint.invalid(f"{names[0]} and {names[1]}", limits, "two numbers of tiles from 1 to 64")
    if limits == _TILES and not published:
        return {}
    return dict(zip(("vision.preproc_min_tiles", "vision.preproc_max_tiles"), limits, strict=True))


def _rules(vision: Checkpoint, published: bool) -> Rules:
    has_norms = bool(vision.config.get("qk_normalization" if published else "use_qk_norm"))
    has_bias = bool(vision.config.get("qkv_bias" if published else "attention_bias"))
    names, norms = (_PUBLISHED_NAMES, _PUBLISHED_NORMS) if published else (_NAMES, _NORMS)
    required = [
        f"{name}.bias" for name in ("attn_out", "ffn_up", "ffn_down", *(f"mm.model.mlp.{i}" for i in (0, 1, 3)))
    ]
    required += ["ls1.weight", "ls2.weight", *(f"attn_{part}.weight" for part in "qkv")]
    required += [f"attn_{part}.bias" for part in "qkv"] if has_bias else []
    required += ["attn_q_norm.weight", "attn_k_norm.weight"] if has_norms else []
    vision.require("norm_type", "layer_norm", "layer_norm", "rms_norm")
    required += ["ln1.bias", "ln2.bias"] if vision.config.get("norm_type") != "rms_norm" else []
    return Rules(names=names | (norms if has_norms else {}), required=required)
