"""Convert GPT-NeoX and Pythia."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, from_groups, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="gelu", attention_bias=True)
    sizes, rope = read_sizes(checkpoint, layer_norm_eps="layer_norm_eps"), read_rope(checkpoint)
    keys = sizes.keys() | {"use_parallel_residual": checkpoint.config.get("use_parallel_residual") is not False}
    keys["rope.dimension_count"] = rope.n_rotated(sizes.head_dim, checkpoint.number("rotary_pct", 0.25))
    keys |= rope.keys(known_base=10_000.0)
    del keys["attention.head_count_kv"]
    groups = from_groups(sizes.n_heads, sizes.n_heads)
    rules = Rules(
        required=["attn_*.bias", "ffn_*.bias", "output_norm.bias"],
        recipes={"attn_qkv.weight": groups, "attn_qkv.bias": groups},
    )
    return make_layout(checkpoint, "gptneox", keys, rules, vocab=sizes.vocab)
