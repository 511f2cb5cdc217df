"""Convert EXAONE 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.convert import Rules, make_layout, read_rope, read_sizes, windowed_layers

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_act", "silu", "silu")
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "linear", "llama3", "yarn")
    keys = sizes.keys() | rope.keys() | {"vocab_size": sizes.vocab}
    if checkpoint.config.get("sliding_window") is not None:
        stated = checkpoint.config.get("sliding_window_pattern")
        if isinstance(stated, str):
            checkpoint.require("sliding_window_pattern", None, "L" * (len(stated) - 1) + "G")
        period = len(stated) if isinstance(stated, str) else checkpoint.integer("sliding_window_pattern", 4)
        keys["attention.sliding_window"] = checkpoint.integer("sliding_window")
        keys["attention.sliding_window_pattern"] = windowed_layers(checkpoint, sizes.n_layers, period=period)
    rules = Rules(
        names={"layers.post_attention_layernorm": "post_attention_norm"},
        constants=rope.llama3_factors(sizes.head_dim),
    )
    return make_layout(checkpoint, "exaone4", keys, rules, vocab=sizes.vocab)
