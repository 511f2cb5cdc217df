"""Convert StableLM 3B and 2, except the 12B, which normalises queries and keys."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", qk_layernorm=False)
    sizes, rope = read_sizes(checkpoint, layer_norm_eps="layer_norm_eps"), read_rope(checkpoint)
    keys = sizes.keys()
    keys |= {
        "use_parallel_residual": checkpoint.config.get("use_parallel_residual") is True,
        "rope.dimension_count": rope.n_rotated(sizes.head_dim, 0.25),
    }
    biases = checkpoint.biases(use_qkv_bias=("attn_q", "attn_k", "attn_v"))
    rules = Rules(required=["*_norm.bias", *biases])
    keys |= rope.keys(known_base=10_000.0)
    return make_layout(checkpoint, "stablelm", keys, rules, vocab=sizes.vocab)
