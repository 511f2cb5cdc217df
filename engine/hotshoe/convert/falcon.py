"""Convert Falcon 1 and 2 as transformers has them, except Falcon-RW, which has ALiBi."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Rules, from_groups, make_layout, read_rope

__all__ = ["describe"]

_CONTEXT = 2048  # config.json does not say


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(activation="gelu", alibi=False, bias=False, parallel_attn=True)
    groups = checkpoint.config.get("new_decoder_architecture") is True
    if not groups:
        checkpoint.expect(multi_query=True)
    dim, n_heads = checkpoint.integer("hidden_size"), checkpoint.integer("num_attention_heads")
    n_kv = checkpoint.integer("num_kv_heads", n_heads) if groups else 1
    checkpoint.expect(ffn_hidden_size=4 * dim)
    rope = read_rope(checkpoint)
    keys: dict[str, Any] = {
        "context_length": _CONTEXT,
        "tensor_data_layout": "jploski",
        "embedding_length": dim,
        "feed_forward_length": 4 * dim,
        "block_count": checkpoint.layers(),
        "attention.head_count": n_heads,
        "attention.head_count_kv": n_kv,
        "attention.layer_norm_epsilon": checkpoint.number("layer_norm_epsilon", 1e-5),
    }
    keys |= rope.keys(known_base=10_000.0)

    two = any(".ln_mlp." in name for name in checkpoint.tensors)
    norms: dict[str, str | tuple[str, ...]] = (
        {"layers.ln_attn": "attn_norm_2", "layers.ln_mlp": "attn_norm"} if two else {}
    )
    biased = ["attn_norm", "output_norm", *(["attn_norm_2"] if two else [])]
    rules = Rules(
        names=norms,
        required=[*(f"{name}.bias" for name in biased), *(["attn_norm_2.weight"] if two else [])],
        recipes={"attn_qkv.weight": from_groups(n_heads, n_kv)},
    )
    return make_layout(checkpoint, "falcon", keys, rules, vocab=checkpoint.integer("vocab_size"), tied=True)
