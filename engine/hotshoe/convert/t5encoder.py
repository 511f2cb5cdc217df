"""Convert T5's encoder, of a checkpoint with or without the decoder."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout

__all__ = ["describe"]

_ACTIVATIONS = ("relu", "gated-gelu")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(relative_attention_max_distance=128)
    checkpoint.require("feed_forward_proj", "relu", *_ACTIVATIONS)
    head_dim, eps = checkpoint.integer("d_kv", 64), checkpoint.number("layer_norm_epsilon", 1e-6)
    keys = {
        "context_length": checkpoint.integer("n_positions", 512),
        "embedding_length": checkpoint.integer("d_model"),
        "feed_forward_length": checkpoint.integer("d_ff"),
        "block_count": checkpoint.integer("num_layers"),
        "attention.head_count": checkpoint.integer("num_heads"),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_epsilon": eps,
        "attention.layer_norm_rms_epsilon": eps,
        "attention.relative_buckets_count": checkpoint.integer("relative_attention_num_buckets", 32),
    }
    gated = checkpoint.config.get("feed_forward_proj") == "gated-gelu"
    shared = next((n for n in ("shared", "encoder.embed_tokens") if f"{n}.weight" in checkpoint.tensors), "shared")
    others = [name for name in ("shared.", "encoder.embed_tokens.") if not name.startswith(shared)]
    rules = Rules(
        names={
            shared: "token_embd",
            "layers.layer.0.SelfAttention.q": "attn_q",
            "layers.layer.0.SelfAttention.k": "attn_k",
            "layers.layer.0.SelfAttention.v": "attn_v",
            "layers.layer.0.SelfAttention.o": "attn_o",
            "layers.layer.0.SelfAttention.relative_attention_bias": "attn_rel_b",
            "layers.layer.0.layer_norm": "attn_norm",
            "layers.layer.1.layer_norm": "ffn_norm",
            "layers.layer.1.DenseReluDense.wo": "ffn_down",
            **(
                {"layers.layer.1.DenseReluDense.wi_0": "ffn_gate", "layers.layer.1.DenseReluDense.wi_1": "ffn_up"}
                if gated
                else {"layers.layer.1.DenseReluDense.wi": "ffn_up"}
            ),
            "encoder.final_layer_norm": "enc.output_norm",
        },
        required=["ffn_gate.weight"] if gated else [],
        ignored=("decoder.", "lm_head.", *others),
    )
    vocab = checkpoint.integer("vocab_size")
    return make_layout(checkpoint, "t5encoder", keys, rules, vocab=vocab, block="enc.blk.")
