"""Convert EXAONE 4 and K-EXAONE."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    ModelSizes,
    Rope,
    Rules,
    make_layout,
    mixture_keys,
    read_rope,
    read_sizes,
    windowed_layers,
)

__all__ = ["describe", "describe_moe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    sizes, rope, keys = _keys(checkpoint)
    rules = Rules(
        names={"layers.post_attention_layernorm": "post_attention_norm"},
        constants=rope.llama3_factors(sizes.head_dim),
    )
    return make_layout(checkpoint, "exaone4", keys, rules, vocab=sizes.vocab)


def describe_moe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(scoring_func="sigmoid")
    sizes, rope, keys = _keys(checkpoint)
    n, n_dense = sizes.n_layers, checkpoint.count("first_k_dense_replace", 1)
    checkpoint.require("mlp_layer_types", None, ["dense"] * n_dense + ["sparse"] * (n - n_dense))
    names = {"expert_shared_count": "num_shared_experts"}
    defaults = {"leading_dense_block_count": 1, "expert_shared_count": 1}
    keys |= mixture_keys(checkpoint, "num_experts", used=8, names=names, defaults=defaults)
    keys["expert_shared_feed_forward_length"] = keys["expert_feed_forward_length"] * keys["expert_shared_count"]
    keys |= {"expert_gating_func": 2, "nextn_predict_layers": 0, "rope.scaling.type": "none"}
    rules = Rules(required=["exp_probs_b.bias"], constants=rope.llama3_factors(sizes.head_dim), ignored=("mtp.",))
    return make_layout(checkpoint, "exaone-moe", keys, rules, vocab=sizes.vocab)


def _keys(checkpoint: Checkpoint) -> tuple[ModelSizes, Rope, dict[str, Any]]:
    checkpoint.expect(hidden_act="silu")
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "llama3", "yarn")
    keys = sizes.keys() | rope.keys() | {"vocab_size": sizes.vocab}
    if checkpoint.config.get("sliding_window") is not None:
        stated = checkpoint.config.get("sliding_window_pattern")
        if isinstance(stated, str):
            checkpoint.require("sliding_window_pattern", None, "L" * (len(stated) - 1) + "G")
        period = len(stated) if isinstance(stated, str) else checkpoint.integer("sliding_window_pattern", 4)
        keys["attention.sliding_window"] = checkpoint.integer("sliding_window")
        keys["attention.sliding_window_pattern"] = windowed_layers(checkpoint, sizes.n_layers, period=period)
    return sizes, rope, keys
