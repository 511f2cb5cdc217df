"""Convert Gemma 4: the text model, and the encoder of pictures. Sound is left out."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe.convert import (
    Array,
    Checkpoint,
    FileLayout,
    Recipe,
    Rope,
    Rules,
    make_layout,
    make_tower_layout,
    read_rope,
    read_sizes,
    tower_keys,
    windowed_layers,
)
from hotshoe.convert._names import Names
from hotshoe.convert._tower import processor_count, read_preprocessor

__all__ = ["describe", "describe_tower", "describe_unified_tower"]

_OTHERS = (
    *("model.vision_tower.", "model.embed_vision.", "model.vision_embedder."),
    *("model.audio_tower.", "model.embed_audio."),
)
_NOT_ROTATED = 1e30  # as a divisor of a frequency


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    # no layer of the 12B model reads vectors of its own
    per_layer = 0 if checkpoint.architecture == "Gemma4UnifiedForConditionalGeneration" else 256
    checkpoint = checkpoint.text(*_OTHERS)
    checkpoint.expect(hidden_activation="gelu_pytorch_tanh", attention_bias=False)
    checkpoint.require("use_bidirectional_attention", None, "vision")
    sizes = read_sizes(checkpoint, head_dim=256, n_kv_heads=4, default_eps=1e-6)
    rope = read_rope(checkpoint, "proportional", theta=1_000_000.0, local_theta=10_000.0)
    windowed = windowed_layers(checkpoint, sizes.n_layers, period=6)
    head_dim = _of_full(checkpoint, "global_head_dim", "head_dim", windowed) or 512
    n_kv_heads = _of_full(checkpoint, "num_global_key_value_heads", "num_key_value_heads", windowed)
    keys = sizes.keys() | {
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.key_length_swa": sizes.head_dim,
        "attention.value_length_swa": sizes.head_dim,
        "attention.sliding_window": checkpoint.integer("sliding_window", 512),
        "attention.sliding_window_pattern": windowed,
        "attention.shared_kv_layers": checkpoint.count("num_kv_shared_layers"),
        "embedding_length_per_layer_input": checkpoint.count("hidden_size_per_layer_input", per_layer),
        "rope.dimension_count": head_dim,
        "rope.dimension_count_swa": sizes.head_dim,
        "final_logit_softcapping": checkpoint.number("final_logit_softcapping", 0.0),
    }
    if n_kv_heads is not None:
        keys["attention.head_count_kv"] = [sizes.n_kv_heads if w else n_kv_heads for w in windowed]
    if checkpoint.config.get("use_double_wide_mlp"):
        own = sizes.n_layers - keys["attention.shared_kv_layers"]
        keys["feed_forward_length"] = [sizes.ff if i < own else 2 * sizes.ff for i in range(sizes.n_layers)]
    if checkpoint.config.get("enable_moe_block"):
        keys |= {
            "expert_count": checkpoint.integer("num_experts"),
            "expert_used_count": checkpoint.integer("top_k_experts"),
            "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size"),
        }
    optional = {"layer_output_scale.weight": ".layer_scalar", "ffn_down_exps.scale": ".per_expert_scale"}
    rules = Rules(
        names={"layers.post_attention_layernorm": "post_attention_norm"},
        required=[name for name, end in optional.items() if any(t.endswith(end) for t in checkpoint.tensors)],
        constants={"rope_freqs.weight": _factors(head_dim, rope)},
    )
    return make_layout(checkpoint, "gemma4", keys | rope.keys(), rules, vocab=sizes.vocab, tied=True)


_TOWER_NAMES: Names = {
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
_LIMITS = ("input_min", "input_max", "output_min", "output_max")
_CAUSAL = (1536, 2560)  # sizes of models whose pictures are causal: readers know them by it


def describe_tower(checkpoint: Checkpoint) -> FileLayout:
    """Describe the encoder of pictures. Raises as ``describe`` does."""
    vision = checkpoint.vision("model.vision_tower.", "model.embed_vision.")
    vision.expect(hidden_activation="gelu_pytorch_tanh")
    vision.config.setdefault("image_size", 224)  # it reads pictures of any size; llama.cpp's converter writes this one
    keys = tower_keys(checkpoint, vision) | _rows(checkpoint, vision)
    keys["vision.attention.layer_norm_epsilon"] = vision.number("rms_norm_eps", 1e-6)
    keys["vision.projector_type"] = "gemma4v"  # llama.cpp's files have another one for sound
    vision.expect(num_key_value_heads=keys["vision.attention.head_count"])
    clipped, standard = bool(vision.config.get("use_clipped_linears")), bool(vision.config.get("standardize"))
    names = _TOWER_NAMES | {f"{name}.linear": to for name, to in _LINEAR.items()}
    required = []
    if clipped:
        names |= {f"{name}.{limit}": f"{to}.{limit}" for name, to in _LINEAR.items() for limit in _LIMITS}
        required += [f"{to}.{limit}" for to in _LINEAR.values() for limit in _LIMITS]
    if standard:
        names |= {"std_bias": "v.std_bias", "std_scale": "v.std_scale"}
        required += ["v.std_bias", "v.std_scale"]
    dim, patch = keys["vision.embedding_length"], keys["vision.patch_size"]
    as_image = Recipe(lambda v: v.reshape(dim, patch, patch, 3).transpose(0, 3, 1, 2), (dim, patch * patch * 3))
    rules = Rules(names=names, recipes={"v.patch_embd.weight": as_image}, required=required)
    return make_tower_layout(checkpoint, vision, "gemma4v", keys, rules)


_UNIFIED_NAMES: Names = {
    "patch_ln1": "v.patch_norm.1",
    "patch_dense": "v.patch_embd",
    "patch_ln2": "v.patch_norm.2",
    "pos_embedding": "v.position_embd.weight",
    "pos_norm": "v.patch_norm.3",
    "embedding_projection": "mm.input_projection",
}


def describe_unified_tower(checkpoint: Checkpoint) -> FileLayout:
    """Describe what Gemma 4 12B has in place of an encoder of pictures. Raises as ``describe`` does."""
    vision = checkpoint.vision("model.vision_embedder.", "model.embed_vision.")
    checkpoint.text().expect(use_bidirectional_attention="vision")
    # llama.cpp's converter writes these, too
    none = dict.fromkeys(("intermediate_size", "num_hidden_layers", "num_attention_heads"), 0)
    vision.config.update({"image_size": 224} | none)
    dim = vision.integer("mm_embed_dim")
    vision.expect(output_proj_dims=dim)
    keys = tower_keys(checkpoint, vision, dim="mm_embed_dim") | _limits(checkpoint, vision)
    keys |= {
        "vision.attention.layer_norm_epsilon": vision.number("rms_norm_eps", 1e-6),
        "vision.projector_type": "gemma4uv",  # llama.cpp's files have another one for sound
    }
    side = vision.integer("patch_size") * vision.integer("pooling_kernel_size", 3)
    n_positions = vision.integer("mm_posemb_size")
    # channels first
    by_channel = Recipe(lambda v: v.reshape(-1, side**2, 3).swapaxes(1, 2).reshape(v.shape))
    rules = Rules(
        names=_UNIFIED_NAMES,
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


def _rows(checkpoint: Checkpoint, vision: Checkpoint) -> dict[str, Any]:
    """The keys of how patches become rows, where they differ from what readers assume."""
    text = checkpoint.text(*_OTHERS)
    causal = text.config.get("use_bidirectional_attention") != "vision"
    if causal != (text.integer("hidden_size") in _CAUSAL):
        raise text.invalid(
            "use_bidirectional_attention",
            text.config.get("use_bidirectional_attention"),
            f"null for models of a hidden_size of {_CAUSAL}, and 'vision' for all others: files do not say it",
        )
    return _limits(checkpoint, vision)


def _limits(checkpoint: Checkpoint, vision: Checkpoint) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if (pool := vision.integer("pooling_kernel_size", 3)) != 3:
        keys["vision.projector.scale_factor"] = pool
    if (n := processor_count(checkpoint, read_preprocessor(checkpoint), "max_soft_tokens", 280)) != 280:
        keys["vision.image_max_pixels"] = n * (vision.integer("patch_size") * pool) ** 2
    return keys


def _of_full(checkpoint: Checkpoint, name: str, name_in_layer: str, windowed: list[bool]) -> int | None:
    """A size of the full layers. transformers 5 writes it for each layer, earlier versions once."""
    if checkpoint.config.get(name) is not None:
        return checkpoint.integer(name)
    by_layer = checkpoint.config.get("per_layer_config")
    for i, has_window in enumerate(windowed):
        stated = by_layer.get(str(i)) if isinstance(by_layer, dict) and not has_window else None
        if isinstance(stated, dict) and name_in_layer in stated:
            if not isinstance(stated[name_in_layer], int):
                raise checkpoint.invalid(f"per_layer_config {name_in_layer}", stated[name_in_layer], "a number")
            return int(stated[name_in_layer])
    return None


def _factors(head_dim: int, rope: Rope) -> Array:
    """Divisors of the frequencies of full layers: those of elements that are not rotated are huge."""
    part = rope.share() if rope.kind == "proportional" else 1.0
    n = int(head_dim * part / 2)
    return np.array([1.0] * n + [_NOT_ROTATED] * (head_dim // 2 - n), np.float32)
