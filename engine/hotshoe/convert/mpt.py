"""Convert MPT."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    attention = checkpoint.part("attn_config")
    checkpoint.expect(no_bias=True, learned_pos_emb=True, logit_scale=None, expansion_ratio=4)
    attention.expect(alibi=True, qk_ln=False, prefix_lm=False, softmax_scale=None)
    dim, clip = checkpoint.integer("d_model"), attention.config.get("clip_qkv")
    keys = {
        "block_count": checkpoint.integer("n_layers"),
        "context_length": checkpoint.integer("max_seq_len"),
        "embedding_length": dim,
        "feed_forward_length": 4 * dim,
        "attention.head_count": checkpoint.integer("n_heads"),
        "attention.layer_norm_epsilon": 1e-5,
        "attention.max_alibi_bias": attention.number("alibi_bias_max", 8.0),
    }
    if clip is not None:
        keys["attention.clamp_kqv"] = attention.number("clip_qkv")
    names = {"layers.norm_1": "attn_norm", "layers.norm_2": "ffn_norm", "norm_f": "output_norm"}
    names |= {"layers.ffn.up_proj": "ffn_up", "layers.ffn.down_proj": "ffn_down"}
    return make_layout(checkpoint, "mpt", keys, Rules(names=names), vocab=checkpoint.integer("vocab_size"), tied=True)
