"""Convert Phi-3 and Phi-4: one matrix for queries, keys and values, one for gate and up, and LongRoPE."""

from __future__ import annotations

import math

from hotshoe.convert import Checkpoint, FileLayout, Rope, Rules, make_layout, read_rope, read_sizes

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu")
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "longrope")
    if sizes.q != sizes.dim:
        raise checkpoint.refusal(
            f"head_dim is {sizes.head_dim}; for this architecture a GGUF file can only express "
            f"hidden_size / num_attention_heads, {sizes.dim / sizes.n_heads:g}"
        )
    share = rope.number("partial_rotary_factor", checkpoint.number("partial_rotary_factor", 1.0))
    n_rotated = int(share * sizes.dim) // sizes.n_heads
    window = checkpoint.config.get("sliding_window")
    keys = sizes.keys(heads=False) | {
        "rope.dimension_count": n_rotated,
        "rope.scaling.original_context_length": rope.original_context(),
        # 0 means no window; readers assume a window if the key is missing, because old files of such models lack it
        "attention.sliding_window": 0 if window is None else checkpoint.integer("sliding_window"),
    }
    if rope.kind == "longrope":
        keys["rope.scaling.attn_factor"] = _scale(checkpoint, rope)
    rules = Rules(constants=rope.longrope_factors(n_rotated))
    return make_layout(checkpoint, "phi3", keys | rope.keys(), rules, vocab=sizes.vocab)


def _scale(checkpoint: Checkpoint, rope: Rope) -> float:
    if rope.settings.get("attention_factor") is not None:
        return float(rope.number("attention_factor"))
    original = rope.original_context()
    scale = checkpoint.integer("max_position_embeddings") / original
    # Source: LongRoPE (Ding et al. 2024), as in transformers
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 and original > 1 else 1.0
