"""Convert Qwen2-VL, Qwen2.5-VL and Qwen3-VL: the text models, and the encoders of pictures, also that of Qwen 3.5."""

from __future__ import annotations

import math
from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rules, make_tower_layout, read_rope, tower_keys
from hotshoe.convert._names import Names
from hotshoe.convert.qwen2 import describe_qwen2
from hotshoe.convert.qwen3 import describe_qwen3
from hotshoe.convert.qwen3moe import describe_qwen3moe

__all__ = ["describe_2", "describe_3", "describe_3_moe", "describe_tower_2", "describe_tower_2_5", "describe_tower_3"]

_ENCODERS = ("visual.", "model.visual.")


def describe_2(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text(*_ENCODERS)
    rope = read_rope(text, "linear", "yarn")
    return describe_qwen2(
        text, "qwen2vl", rope, {"rope.dimension_sections": rope.sections(16, 24, 24, interleaved=False)}
    )


def describe_3(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text(*_ENCODERS)
    rope = read_rope(text, "linear", "yarn")
    return describe_qwen3(
        text,
        "qwen3vl",
        rope,
        _keys(checkpoint) | {"rope.dimension_sections": rope.sections(24, 20, 20, interleaved=True)},
    )


def describe_3_moe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text(*_ENCODERS)
    text.expect(norm_topk_prob=True)
    rope = read_rope(text, "linear", "yarn")
    keys = _keys(checkpoint) | {"rope.dimension_sections": rope.sections(24, 20, 20, interleaved=True)}
    return describe_qwen3moe(text, "qwen3vlmoe", rope, keys, _transposed(text))


_BLOCK_NAMES: Names = {
    "patch_embed.proj.weight": ("v.patch_embd.weight", "v.patch_embd.weight.1"),
    "layers.norm1": "ln1",
    "layers.norm2": "ln2",
    "layers.attn.qkv": "attn_qkv",
    "layers.attn.proj": "attn_out",
}
_MERGER_NAMES: Names = {"merger.ln_q": "v.post_ln", "merger.mlp.0": "mm.0", "merger.mlp.2": "mm.2"}
_PARTS = [f"attn_{part}.{kind}" for part in "qkv" for kind in ("weight", "bias")]


def describe_tower_2(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of Qwen2-VL. Raises as ``describe_2`` does."""
    vision = checkpoint.vision(*_ENCODERS)
    vision.expect(hidden_act="quick_gelu")
    # llama.cpp's converter writes the text model's size as that of the MLP
    keys = tower_keys(
        checkpoint, _with_size(vision), layers="depth", dim="embed_dim", ff="hidden_size", heads="num_heads"
    )
    names: Names = {"layers.mlp.fc1": "ffn_up", "layers.mlp.fc2": "ffn_down"}
    return _tower_2(checkpoint, vision, "qwen2vl_merger", keys, names)


def describe_tower_2_5(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of Qwen2.5-VL. Raises as ``describe_2`` does."""
    vision = checkpoint.vision(*_ENCODERS)
    vision.expect(hidden_act="silu", window_size=112)
    full = vision.config.get("fullatt_block_indexes")
    period = full[0] + 1 if isinstance(full, list) and full and isinstance(full[0], int) else 0
    if not period or full != list(range(period - 1, period * len(full), period)):
        raise vision.refusal(f"fullatt_block_indexes is {full!r:.80}; a file can only say that one layer in n is full")
    keys = tower_keys(checkpoint, _with_size(vision), layers="depth", heads="num_heads")
    keys |= {"use_silu": True, "vision.n_wa_pattern": period}
    return _tower_2(checkpoint, vision, "qwen2.5vl_merger", keys, {})


def describe_tower_3(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of Qwen3-VL and Qwen 3.5. Raises as ``describe_3`` does."""
    vision = checkpoint.vision(*_ENCODERS)
    vision.expect(hidden_act="gelu_pytorch_tanh")
    side = math.isqrt(n := vision.integer("num_position_embeddings", 2304))
    if side * side != n:
        raise vision.refusal(f"num_position_embeddings is {n}, which is not the square of a number")
    vision.config["image_size"] = side * vision.integer("patch_size")
    keys = tower_keys(checkpoint, vision, layers="depth", heads="num_heads")
    n_layers = keys["vision.block_count"]
    deep = vision.config.get("deepstack_visual_indexes") or []
    if not isinstance(deep, list) or not set(deep) <= set(range(n_layers)) or deep != sorted(set(deep)):
        raise vision.invalid("deepstack_visual_indexes", deep, f"a list of ascending numbers of {n_layers} layers")
    keys |= {
        "use_gelu": True,
        "vision.spatial_merge_size": 2,
        "vision.is_deepstack_layers": [i in deep for i in range(n_layers)],
    }
    names: Names = {
        "patch_embed.proj.bias": "v.patch_embd.bias",
        "pos_embed": "v.position_embd",
        "layers.mlp.linear_fc1": "ffn_up",
        "layers.mlp.linear_fc2": "ffn_down",
        "merger.norm": "v.post_ln",
        "merger.linear_fc1": "mm.0",
        "merger.linear_fc2": "mm.2",
    }
    biases = [f"{part}.bias" for part in ("ln1", "ln2", "attn_qkv", "attn_out", "ffn_up", "ffn_down")]
    biases += [f"{part}.bias" for part in ("v.post_ln", "mm.0", "mm.2")]
    for number, layer in enumerate(deep):
        for old, new in (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2")):
            names[f"deepstack_merger_list.{number}.{old}"] = f"v.deepstack.{layer}.{new}"
            biases.append(f"v.deepstack.{layer}.{new}.bias")
    return _tower(checkpoint, vision, "qwen3vl_merger", keys, _BLOCK_NAMES | names, biases)


def _with_size(vision: Checkpoint) -> Checkpoint:
    vision.config.setdefault("image_size", 560)  # it reads pictures of any size; llama.cpp's converter writes this one
    return vision


def _tower_2(checkpoint: Checkpoint, vision: Checkpoint, kind: str, keys: dict[str, Any], names: Names) -> FileLayout:
    biases = [*_PARTS, *(f"{name}.bias" for name in ("ln1", "ln2") if kind == "qwen2vl_merger")]
    biases += [f"{name}.bias" for name in ("attn_out", "ffn_up", "ffn_down", "mm.0", "mm.2")]
    biases.append("v.post_ln.bias" if kind == "qwen2vl_merger" else "ffn_gate.bias")
    names = _BLOCK_NAMES | _MERGER_NAMES | names
    if any(name.endswith(".attn.q.weight") for name in vision.tensors):  # Qwen2.5-Omni
        del names["layers.attn.qkv"]
        names |= {f"layers.attn.{part}": f"attn_{part}" for part in "qkv"}
    return _tower(checkpoint, vision, kind, keys, names, biases)


def _tower(
    checkpoint: Checkpoint, vision: Checkpoint, kind: str, keys: dict[str, Any], names: Names, biases: list[str]
) -> FileLayout:
    vision.expect(in_channels=3, temporal_patch_size=2, spatial_merge_size=2)
    dim, patch = keys["vision.embedding_length"], keys["vision.patch_size"]
    stored = (dim, 3, 2, patch, patch)
    recipes = {
        "v.patch_embd.weight": Recipe(lambda value: value[:, :, 0], stored),
        "v.patch_embd.weight.1": Recipe(lambda value: value[:, :, 1], stored, full_precision=False),
    }
    keys["vision.attention.layer_norm_epsilon"] = checkpoint.number("rms_norm_eps", 1e-6)
    return make_tower_layout(checkpoint, vision, kind, keys, Rules(names=names, recipes=recipes, required=biases))


def _transposed(text: Checkpoint) -> dict[str, Recipe]:
    """Recipes of experts that are stored as (experts, in, out), as published; none if they are (experts, out, in)."""
    dim, ff = text.integer("hidden_size"), text.integer("moe_intermediate_size")
    gate_up = next((t.shape for name, t in text.tensors.items() if name.endswith(".gate_up_proj")), ())
    if gate_up[1:] != (dim, 2 * ff) or dim == 2 * ff:
        return {}
    return {
        "ffn_gate_exps.weight": Recipe(lambda value: value[..., :ff].swapaxes(1, 2), gate_up),
        "ffn_up_exps.weight": Recipe(lambda value: value[..., ff:].swapaxes(1, 2), gate_up),
        "ffn_down_exps.weight": Recipe(lambda value: value.swapaxes(1, 2), (gate_up[0], ff, dim)),
    }


def _keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """The number of layers that also read what the encoder finds in a picture."""
    vision = checkpoint.config.get("vision_config")
    indexes = vision.get("deepstack_visual_indexes") if isinstance(vision, dict) else None
    return {"n_deepstack_layers": len(indexes) if isinstance(indexes, list) else 0}
