"""Convert Qwen3 with a mixture of experts in every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rope, Rules, expert_keys, make_layout, read_rope, read_sizes

__all__ = ["describe", "describe_qwen3moe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    # llama.cpp's converter writes no key, and readers scale the weights to sum to 1, as all published models do
    more = {} if checkpoint.config.get("norm_topk_prob", False) else {"expert_weights_norm": False}
    return describe_qwen3moe(checkpoint, "qwen3moe", read_rope(checkpoint, "linear", "yarn"), more)


def describe_qwen3moe(
    checkpoint: Checkpoint, arch: str, rope: Rope, more: dict[str, Any], recipes: Mapping[str, Recipe] | None = None
) -> FileLayout:
    """Describe the file of a model that ``arch`` names. more, recipes: what variants add."""
    checkpoint.expect(hidden_act="silu", use_sliding_window=False, decoder_sparse_step=1, mlp_only_layers=[])
    sizes = read_sizes(checkpoint)
    count = "num_local_experts" if "num_local_experts" in checkpoint.config else "num_experts"
    keys = sizes.keys() | expert_keys(checkpoint, count, used=8)
    keys["expert_feed_forward_length"] = checkpoint.integer("moe_intermediate_size")
    biases = checkpoint.biases(attention_bias=("attn_q", "attn_k", "attn_v", "attn_output"))
    rules = Rules(required=biases, recipes=recipes or {})
    return make_layout(checkpoint, arch, keys | more | rope.keys(), rules, vocab=sizes.vocab)
