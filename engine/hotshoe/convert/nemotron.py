"""Convert Nemotron 3 and 4, and Minitron."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, plus, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="relu2")
    sizes, rope = read_sizes(checkpoint, layer_norm_eps="norm_eps"), read_rope(checkpoint, "linear")
    keys = {"rope.scaling.type": "none"} | sizes.keys() | rope.keys()
    keys |= {"vocab_size": sizes.vocab, "rope.dimension_count": rope.n_rotated(sizes.head_dim, 0.5)}
    keys["attention.layer_norm_rms_epsilon"] = sizes.eps  # as llama.cpp writes it
    biases = checkpoint.biases(
        attention_bias=["attn_q", "attn_k", "attn_v", "attn_output"], mlp_bias=["ffn_up", "ffn_down"]
    )
    recipes = {f"{name}.weight": plus(1.0) for name in ("attn_norm", "ffn_norm", "output_norm")}
    rules = Rules(required=["*_norm.bias", *biases], recipes=recipes)
    return make_layout(checkpoint, "nemotron", keys, rules, vocab=sizes.vocab)
