"""Convert DBRX."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Recipe, Rules, make_layout, read_rope

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    attention, experts = (checkpoint.part(name) for name in ("attn_config", "ffn_config"))
    experts.expect(ffn_act_fn={"name": "silu"}, moe_normalize_expert_weights=1)
    dim, ff, n = checkpoint.integer("d_model"), experts.integer("ffn_hidden_size"), experts.integer("moe_num_experts")
    rope = read_rope(checkpoint, theta=attention.number("rope_theta", 10_000.0))
    keys = rope.keys() | {
        "block_count": checkpoint.integer("n_layers"),
        "context_length": checkpoint.integer("max_seq_len"),
        "embedding_length": dim,
        "feed_forward_length": ff,
        "attention.head_count": checkpoint.integer("n_heads"),
        "attention.head_count_kv": attention.integer("kv_n_heads"),
        "attention.clamp_kqv": attention.number("clip_qkv"),
        "attention.layer_norm_epsilon": 1e-5,
        "expert_count": n,
        "expert_used_count": experts.integer("moe_top_k"),
    }
    split = Recipe(lambda w: w.reshape(n, ff, dim), (n * ff, dim), by_rows=True)
    rules = Rules(
        names={
            "layers.norm_attn_norm.norm_1": "attn_norm",
            "layers.norm_attn_norm.norm_2": "attn_output_norm",
            "layers.norm_attn_norm.attn.Wqkv": "attn_qkv",
            "layers.norm_attn_norm.attn.out_proj": "attn_output",
            "layers.ffn.router.layer": "ffn_gate_inp",
            "layers.ffn.experts.mlp.w1": "ffn_gate_exps",
            "layers.ffn.experts.mlp.v1": "ffn_up_exps",
            "layers.ffn.experts.mlp.w2": "ffn_down_exps",
            "norm_f": "output_norm",
        },
        recipes={
            "ffn_gate_inp.weight": Recipe(full_precision=False),
            "ffn_gate_exps.weight": split,
            "ffn_up_exps.weight": split,
            "ffn_down_exps.weight": Recipe(lambda w: w.reshape(n, ff, dim).swapaxes(1, 2), (n * ff, dim)),
        },
    )
    return make_layout(checkpoint, "dbrx", keys, rules, vocab=checkpoint.integer("vocab_size"))
