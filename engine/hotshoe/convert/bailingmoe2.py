"""Convert Ling 2, Ring 2 and Sarvam: norms on queries and keys, and experts with sigmoid scores and a correction."""

from __future__ import annotations

import numpy as np

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rules, make_layout, mixture_keys, read_rope, read_sizes

__all__ = ["describe", "describe_sarvam"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    return _describe(checkpoint, 0.5, Recipe())


def describe_sarvam(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of Sarvam: all elements rotate, and the correction has mean 0. Raises as ``describe`` does."""
    return _describe(checkpoint, 1.0, Recipe(lambda value: value - value.mean(dtype=np.float32)))


def _describe(checkpoint: Checkpoint, rotated: float, correction: Recipe) -> FileLayout:
    checkpoint.expect(use_bias=False, use_qkv_bias=False, attention_bias=False)
    checkpoint.expect(hidden_act="silu", use_qk_norm=True, score_function="sigmoid")
    checkpoint = checkpoint.renamed(n_shared_experts="num_shared_experts")
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "yarn")
    shared = {"expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size"}
    keys = sizes.keys() | mixture_keys(checkpoint, "num_experts", used=8, names=shared) | rope.keys()
    keys.setdefault("expert_shared_feed_forward_length", keys["expert_feed_forward_length"])
    keys |= {"vocab_size": sizes.vocab, "expert_gating_func": 2}
    keys["rope.dimension_count"] = rope.n_rotated(sizes.head_dim, rotated)
    if checkpoint.config.get("num_nextn_predict_layers") is not None:
        keys["nextn_predict_layers"] = 0  # drafting layers are not written
    rules = Rules(
        names={
            "layers.attention.query_key_value": "attn_qkv",
            "layers.attention.query_layernorm": "attn_q_norm",
            "layers.attention.key_layernorm": "attn_k_norm",
            "layers.mlp.gate.expert_bias": "exp_probs_b.bias",
        },
        required=["exp_probs_b.bias"],
        recipes={"exp_probs_b.bias": correction},
        ignored=checkpoint.drafting("num_nextn_predict_layers", sizes.n_layers),
    )
    return make_layout(checkpoint, "bailingmoe2", keys, rules, vocab=sizes.vocab)
