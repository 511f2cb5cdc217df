"""Convert the encoder of pictures of Qwen3-VL and Qwen 3.5."""

from __future__ import annotations

import math

from hotshoe.convert import Checkpoint, FileLayout, Names, tower_keys
from hotshoe.convert.towers._qwen import BLOCK_NAMES, STARTS, make_qwen_layout

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision = checkpoint.vision(*STARTS)
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
    return make_qwen_layout(checkpoint, vision, "qwen3vl_merger", keys, BLOCK_NAMES | names, biases)
