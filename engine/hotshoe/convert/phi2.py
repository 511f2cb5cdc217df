"""Convert Phi 1, 1.5 and 2."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="gelu_new", qk_layernorm=False)
    sizes, rope = read_sizes(checkpoint, layer_norm_eps="layer_norm_eps"), read_rope(checkpoint)
    keys = sizes.keys() | {"rope.dimension_count": rope.n_rotated(sizes.head_dim, 0.5)}
    keys |= rope.keys(known_base=10_000.0)
    rules = Rules(required=["attn_*.bias", "ffn_*.bias", "output*.bias"])
    return make_layout(checkpoint, "phi2", keys, rules, vocab=sizes.vocab)
