"""Convert OLMoE: norms over all heads of queries and keys, and softmax experts."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, expert_keys, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", norm_topk_prob=False)
    checkpoint.require("clip_qkv", None)
    checkpoint.expect(rms_norm_eps=1e-5)  # llama.cpp's converter always writes this one
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "yarn")
    keys = sizes.keys() | rope.keys() | expert_keys(checkpoint, "num_experts", used=8)
    rules = Rules(required=checkpoint.biases(attention_bias=("attn_q", "attn_k", "attn_v", "attn_output")))
    return make_layout(checkpoint, "olmoe", keys, rules, vocab=sizes.vocab)
