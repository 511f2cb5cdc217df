"""Convert the encoder of pictures of Llama 3.2 Vision, with the names that Ollama's files have."""

from __future__ import annotations

import numpy as np

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Recipe,
    Rules,
    make_tower_layout,
    processor_edge,
    read_preprocessor,
    tower_keys,
)
from hotshoe.towers.mllama import MAX_TILES

__all__ = ["describe"]

_STARTS = ("vision_model.", "multi_modal_projector.", "model.vision_model.", "model.multi_modal_projector.")
_IN_LAYERS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
_BIASED = ("attn_norm", "ffn_norm", "ffn_up", "ffn_down")
_NAMES: Names = {
    "patch_embedding": "v.patch_embd",
    "class_embedding": "v.class_embd",
    "gated_positional_embedding.embedding": "v.position_embd",
    "gated_positional_embedding.gate": ("v.position_embd.gate", "v.tile_position_embd.gate"),
    "gated_positional_embedding.tile_embedding": "v.tile_position_embd",
    "pre_tile_positional_embedding.embedding": "v.pre_tile_position_embd",
    "pre_tile_positional_embedding.gate": "v.pre_tile_position_embd.gate",
    "post_tile_positional_embedding.embedding": "v.post_tile_position_embd",
    "post_tile_positional_embedding.gate": "v.post_tile_position_embd.gate",
    "layernorm_pre": "v.pre_ln",
    "layernorm_post": "v.post_ln",
    # the projector, whose names are their ends only
    "weight": "mm.0.weight",
    "bias": "mm.0.bias",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    vision, processor = checkpoint.vision(*_STARTS), read_preprocessor(checkpoint)
    vision.expect(hidden_act="gelu")
    keys = tower_keys(checkpoint, vision, heads="attention_heads")
    n_tiles, n_global = vision.integer("max_num_tiles", 4), vision.integer("num_global_layers", 8)
    if n_tiles > MAX_TILES:
        raise vision.invalid("max_num_tiles", n_tiles, f"at most {MAX_TILES}")
    keys |= {
        "vision.global.block_count": n_global,
        "vision.intermediate_layers_indices": vision.config.get("intermediate_layers_indices"),
        "vision.max_num_tiles": n_tiles,
        "vision.num_channels": vision.integer("num_channels", 3),
        "vision.attention.layer_norm_epsilon": vision.number("norm_eps", 1e-5),
    }
    sides = range(1, n_tiles + 1)
    grids = [[h, w] for h in sides for w in sides if h * w <= n_tiles]
    if vision.config.get("supported_aspect_ratios", grids) != grids:
        raise checkpoint.refusal("supported_aspect_ratios is not every grid of max_num_tiles tiles, in order")
    size = processor_edge(checkpoint, processor, "size", "height")
    if (size, processor.get("max_image_tiles")) != (keys["vision.image_size"], n_tiles):
        raise checkpoint.refusal("the processor's size or max_image_tiles differs from config.json")
    names = {
        f"global_transformer.layers.{i}.{theirs}": f"v.global.blk.{i}.{ours}"
        for i in range(min(n_global, len(vision.tensors)))
        for theirs, ours in (*_IN_LAYERS.items(), ("gate_attn", "attn_gate"), ("gate_ffn", "ffn_gate"))
    }
    gates = [f"v.{name}_tile_position_embd.gate" for name in ("pre", "post")] + ["v.tile_position_embd.gate"]
    gates += ["v.global.attn_gate", "v.global.ffn_gate"]
    recipes = dict.fromkeys(gates, Recipe(np.tanh))
    recipes["v.position_embd.gate"] = Recipe(lambda gate: 1 - np.tanh(gate))
    rules = Rules(
        names={f"layers.{theirs}": ours for theirs, ours in _IN_LAYERS.items()} | _NAMES | names,
        recipes=recipes,
        required=[f"{start}{name}.bias" for start in ("", "v.global.") for name in _BIASED]
        + ["v.pre_ln.bias", "v.post_ln.bias", "mm.0.bias"],
    )
    return make_tower_layout(checkpoint, vision, "mllama", keys, rules)
