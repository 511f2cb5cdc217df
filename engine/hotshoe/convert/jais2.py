"""Convert Jais 2."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="relu2", attention_bias=True, mlp_bias=True)
    sizes, rope = (
        read_sizes(checkpoint, layer_norm_eps="layer_norm_eps"),
        read_rope(checkpoint, "linear", "yarn", theta=500_000.0),
    )
    keys = sizes.keys() | rope.keys() | {"rope.dimension_count": sizes.head_dim}
    rules = Rules(required=["attn_*.bias", "ffn_*.bias", "output_norm.bias"])
    return make_layout(checkpoint, "jais2", keys, rules, vocab=sizes.vocab)
