"""Convert Step 3.5 Flash: heads and RoPE differ by layer, norms add 1 to their weights, products are limited."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe.convert import (
    Array,
    Checkpoint,
    FileLayout,
    Names,
    Rope,
    Rules,
    Settings,
    make_layout,
    plus,
    read_rope,
    read_sizes,
)

__all__ = ["describe"]

_NAMES: Names = {
    "layers.self_attn.g_proj": "attn_gate",
    "layers.moe.gate": "ffn_gate_inp",
    "layers.moe.router_bias": "exp_probs_b.bias",
    **{f"layers.moe.{part}_proj": f"ffn_{part}_exps" for part in ("gate", "up", "down")},
    **{f"layers.share_expert.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")},
}
_NORMS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm", "output_norm")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint = checkpoint.renamed(num_key_value_heads="num_attention_groups")
    checkpoint.expect(hidden_act="silu", use_head_wise_attn_gate=True, moe_router_activation="sigmoid")
    n, bases = checkpoint.layers(), checkpoint.config.get("rope_theta")
    kinds = _of_layers(checkpoint, "layer_types", n, (str,))
    if isinstance(bases, list):
        bases = _of_layers(checkpoint, "rope_theta", n, (int, float))
        checkpoint.config["rope_theta"] = bases[0]
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "llama3")
    checkpoint.expect(query_pre_attn_scalar=sizes.head_dim)
    windowed = [kind == "sliding_attention" for kind in kinds]
    rotated = [1.0 if has_window else 0.5 for has_window in windowed]
    if _of_layers(checkpoint, "partial_rotary_factors", n, (int, float), rotated) != rotated:
        raise checkpoint.refusal("partial_rotary_factors: a file can only express 1 in windows, and 0.5 in full layers")
    other = checkpoint.config.get("attention_other_setting") or Settings({})
    if not isinstance(other, Settings):
        raise checkpoint.invalid("attention_other_setting", other, "an object: the heads of layers with a window")
    inside = replace(checkpoint, config=other)
    heads = inside.integer("num_attention_heads", sizes.n_heads)
    groups = inside.integer("num_attention_groups", sizes.n_kv_heads)
    keys = sizes.keys() | rope.keys() | {
        "attention.head_count": [heads if w else sizes.n_heads for w in windowed],
        "attention.head_count_kv": [groups if w else sizes.n_kv_heads for w in windowed],
        "attention.sliding_window": checkpoint.integer("sliding_window"),
        "attention.sliding_window_pattern": windowed,
        "expert_count": checkpoint.integer("moe_num_experts"),
        "expert_used_count": checkpoint.integer("moe_top_k"),
        "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size"),
        "expert_shared_feed_forward_length": checkpoint.integer("share_expert_dim"),
        "expert_weights_scale": checkpoint.number("moe_router_scaling_factor", 1.0),
        "expert_weights_norm": bool(checkpoint.config.get("norm_expert_weight", True)),
        "expert_gating_func": 2,
        "leading_dense_block_count": _n_dense(checkpoint, n),
        "moe_every_n_layers": checkpoint.integer("moe_every_n_layer", 1),
    }  # fmt: skip
    for name, key in (("swiglu_limits", "swiglu_clamp_exp"), ("swiglu_limits_shared", "swiglu_clamp_shexp")):
        if checkpoint.config.get(name) is not None:
            limits = _of_layers(checkpoint, name, n, (int, float, type(None)))
            keys[key] = [float(limit or 0) for limit in limits]
    if isinstance(bases, list):
        others = {base for base, has_window in zip(bases, windowed, strict=True) if has_window} or {bases[0]}
        if len(others) > 1 or {b for b, w in zip(bases, windowed, strict=True) if not w} - {bases[0]}:
            raise checkpoint.refusal("rope_theta: a file has one base for windows and one for full layers")
        keys["rope.freq_base_swa"] = float(others.pop())
    rules = Rules(
        names=_NAMES,
        required=["exp_probs_b.bias", *(["rope_freqs.weight"] if rope.kind == "llama3" else [])],
        recipes={f"{name}.weight": plus(1.0) for name in _NORMS},
        constants=_factors(rope, sizes.head_dim),
        ignored=checkpoint.drafting("num_nextn_predict_layers", n),
    )
    return make_layout(checkpoint, "step35", keys, rules, vocab=sizes.vocab)


def _of_layers(
    checkpoint: Checkpoint, key: str, n: int, kinds: tuple[type, ...], default: list[Any] | None = None
) -> list[Any]:
    """One value for each layer. Published lists have more: those of layers that only draft tokens."""
    values = checkpoint.config.get(key)
    values = default if values is None else values
    if not isinstance(values, list) or len(values) < n or not all(type(value) in kinds for value in values):
        raise checkpoint.invalid(key, values, f"a list of {n} or more")
    return values[:n]


def _n_dense(checkpoint: Checkpoint, n: int) -> int:
    """The first layers, without experts. ``moe_layers_enum`` lists the others: "3,4,5"."""
    stated = checkpoint.config.get("moe_layers_enum")
    try:
        found = sorted(int(i) for i in str(stated or ",".join(map(str, range(3, n)))).split(",") if int(i) < n)
    except ValueError:
        found = []
    if not found or found != list(range(found[0], n)):
        raise checkpoint.invalid("moe_layers_enum", stated, "the numbers of the last layers, with commas between them")
    return found[0]


def _factors(rope: Rope, head_dim: int) -> dict[str, Array]:
    """Llama 3's divisors for full layers, of which half of the elements rotate; 1 for the others.

    They are computed in float64 from frequencies in float32, as llama.cpp's converter does for this architecture.
    """
    if rope.kind != "llama3":
        return {}
    factor, low = rope.number("factor", 8.0), rope.number("low_freq_factor", 1.0)
    high, old = rope.number("high_freq_factor", 4.0), rope.number("original_max_position_embeddings", 8192)
    n = head_dim // 2
    exponents = np.arange(0, n, 2, dtype=np.float32) / np.float32(n)
    turns = old * (1 / np.float32(rope.theta) ** exponents).astype(np.float64) / (2 * math.pi)  # in the old context
    smooth = (turns - low) / ((high - low) or 1)
    between = np.where(turns > high, 1.0, np.where(turns < low, factor, 1 / ((1 - smooth) / factor + smooth)))
    return {"rope_freqs.weight": np.append(between, np.ones(n - len(between))).astype(np.float32)}
