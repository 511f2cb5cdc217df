"""Convert MiniCPM 1 to 4, of which the third has latent attention."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rope, Rules, interleave, make_layout, read_rope, read_sizes

__all__ = ["describe", "describe_minicpm3"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu")
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "longrope")
    keys = sizes.keys() | rope.keys()
    keys |= {
        "embedding_scale": checkpoint.number("scale_emb"),
        "residual_scale": checkpoint.number("scale_depth") / sizes.n_layers**0.5,
        "logit_scale": sizes.dim / checkpoint.number("dim_model_base"),
    }
    recipes = {"attn_q.weight": interleave(sizes.n_heads), "attn_k.weight": interleave(sizes.n_kv_heads)}
    if rope.kind == "longrope":
        keys["rope.scaling.type"] = "longrope"
    _refuse_longer_context(rope, sizes.context)
    rules = Rules(recipes=recipes, constants=rope.longrope_factors(sizes.head_dim))
    return make_layout(checkpoint, "minicpm", keys, rules, vocab=sizes.vocab)


def describe_minicpm3(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file of MiniCPM 3, which has latent attention. Raises as ``describe`` does."""
    checkpoint.expect(hidden_act="silu", attention_bias=False)
    checkpoint.expect(scale_emb=12, scale_depth=1.4, dim_model_base=256)  # files do not have them
    rotated, plain = checkpoint.integer("qk_rope_head_dim", 32), checkpoint.integer("qk_nope_head_dim", 64)
    sizes, rope = read_sizes(checkpoint, head_dim=rotated), read_rope(checkpoint, "longrope")
    checkpoint.require("v_head_dim", None, sizes.dim // sizes.n_heads)
    keys = sizes.keys(heads=False) | rope.keys(known_base=10_000.0) | {
        "vocab_size": sizes.vocab,
        "attention.q_lora_rank": checkpoint.integer("q_lora_rank", 768),
        "attention.kv_lora_rank": checkpoint.integer("kv_lora_rank", 256),
        "attention.key_length": plain + rotated,
        "rope.dimension_count": rotated,
    }  # fmt: skip
    _refuse_longer_context(rope, sizes.context)
    rules = Rules(names={"layers.self_attn.kv_b_proj": "attn_kv_b"}, constants=rope.longrope_factors(rotated))
    return make_layout(checkpoint, "minicpm3", keys, rules, vocab=sizes.vocab, tied=True)


def _refuse_longer_context(rope: Rope, context: int) -> None:
    if rope.kind == "longrope" and rope.original_context() != context:
        raise rope.checkpoint.refusal("LongRoPE extends the context, which files of this architecture cannot express")
