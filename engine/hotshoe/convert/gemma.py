"""Convert Gemma and Gemma 2: norms that add 1 to their weights, and an output matrix that is the embedding."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Rules, make_layout, plus, read_rope, read_sizes, window_keys

__all__ = ["describe", "describe_gemma2"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(attention_bias=False)
    # old files say hidden_act gelu, but the model was trained with its approximation, which all readers compute
    checkpoint.require("hidden_activation", None, "gelu_pytorch_tanh")
    checkpoint.require("hidden_act", "gelu_pytorch_tanh", "gelu_pytorch_tanh", "gelu")
    checkpoint.expect(use_bidirectional_attention=False)
    sizes, rope = read_sizes(checkpoint, head_dim=256), read_rope(checkpoint)
    rules = Rules(recipes={f"{name}.weight": plus(1.0) for name in ("attn_norm", "ffn_norm", "output_norm")})
    keys = sizes.keys() | ({} if rope.theta == 1e4 else rope.keys())
    return make_layout(checkpoint, "gemma", keys, rules, vocab=sizes.vocab, tied=True)


def describe_gemma2(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(attention_bias=False, hidden_activation="gelu_pytorch_tanh")
    checkpoint.expect(use_bidirectional_attention=False)
    sizes, rope = read_sizes(checkpoint, head_dim=256, n_kv_heads=4), read_rope(checkpoint)
    keys = sizes.keys() | ({} if rope.theta == 1e4 else rope.keys())
    keys |= window_keys(checkpoint, sizes.n_layers, period=2) | {
        "attn_logit_softcapping": checkpoint.number("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": checkpoint.number("final_logit_softcapping", 30.0),
    }
    scalar = checkpoint.number("query_pre_attn_scalar", 256)
    if scalar != sizes.head_dim:
        # llama.cpp's converter writes no key: readers recognise the only such model (27B) by its number of layers
        keys["attention.scale"] = scalar**-0.5 if scalar > 0 else 1.0
    rules = Rules(
        names={"layers.post_attention_layernorm": "post_attention_norm"},
        recipes={
            f"{name}.weight": plus(1.0)
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "output_norm")
        },
    )
    return make_layout(checkpoint, "gemma2", keys, rules, vocab=sizes.vocab, tied=True)
