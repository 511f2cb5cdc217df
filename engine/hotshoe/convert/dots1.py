"""Convert dots.llm1: norms on queries and keys, and experts with sigmoid scores and a correction."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, mixture_keys, read_rope, read_sizes, window_keys

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu")
    checkpoint.require("scoring_func", "sigmoid", "sigmoid", "noaux_tc")  # the second one: in published checkpoints
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "yarn")
    if window_keys(checkpoint, sizes.n_layers, period=1):
        raise checkpoint.refusal("some layers have a sliding window; hotshoe converts models in which none has one")
    keys = sizes.keys() | mixture_keys(checkpoint, "n_routed_experts", used=6) | {"expert_gating_func": 2}
    rules = Rules(
        required=["exp_probs_b.bias", *checkpoint.biases(attention_bias=("attn_q", "attn_k", "attn_v", "attn_output"))]
    )
    return make_layout(checkpoint, "dots1", keys | rope.keys(), rules, vocab=sizes.vocab)
