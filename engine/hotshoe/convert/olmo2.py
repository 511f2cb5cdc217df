"""Convert OLMo 2 and 3."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, read_rope, read_sizes, windowed_layers

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=False)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "yarn", theta=500_000.0)
    keys = sizes.keys() | rope.keys()
    if checkpoint.config.get("sliding_window") is not None:
        keys["attention.sliding_window"] = checkpoint.integer("sliding_window")
        keys["attention.sliding_window_pattern"] = windowed_layers(checkpoint, sizes.n_layers, period=4)
    rules = Rules(names={"layers.post_attention_layernorm": "post_attention_norm"})
    return make_layout(checkpoint, "olmo2", keys, rules, vocab=sizes.vocab)
