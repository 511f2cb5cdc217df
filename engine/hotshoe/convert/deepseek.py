"""Convert DeepSeek 1 and Ling 1: Llama with shared and routed experts."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Rules, interleave, make_layout, mixture_keys, read_rope, read_sizes

__all__ = ["bailing", "describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(norm_topk_prob=False)  # whatever a file says, llama.cpp computes this
    checkpoint.expect(scoring_func="softmax", moe_layer_freq=1)
    return _describe(checkpoint, "deepseek", "n_routed_experts", {"rope.scaling.type": "none"})


def bailing(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of Ling 1. Raises as ``describe`` does."""
    checkpoint.expect(use_bias=False, use_qkv_bias=False, norm_head=False, norm_softmax=False)
    return _describe(checkpoint.renamed(n_shared_experts="num_shared_experts"), "bailingmoe", "num_experts", {})


def _describe(checkpoint: Checkpoint, arch: str, count: str, more: dict[str, Any]) -> FileLayout:
    checkpoint.expect(hidden_act="silu", attention_bias=False, routed_scaling_factor=1.0)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint)
    keys = sizes.keys() | mixture_keys(checkpoint, count, used=6) | rope.keys()
    keys |= {"vocab_size": sizes.vocab, "rope.dimension_count": sizes.head_dim, "expert_weights_scale": 1.0}
    recipes = {"attn_q.weight": interleave(sizes.n_heads), "attn_k.weight": interleave(sizes.n_kv_heads)}
    return make_layout(checkpoint, arch, keys | more, Rules(recipes=recipes), vocab=sizes.vocab)
