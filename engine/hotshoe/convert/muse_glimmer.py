"""Convert the text model of Muse Glimmer."""

from __future__ import annotations

import numpy as np

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Rules,
    interleave,
    make_layout,
    plus,
    read_rope,
    read_sizes,
    windowed_layers,
)

__all__ = ["describe"]


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    text = checkpoint.text()
    text.expect(hidden_activation="silu", post_norm_eps=1e-8)
    sizes, rope = read_sizes(text, head_dim=128), read_rope(text, "linear", "yarn")
    windowed = windowed_layers(text, sizes.n_layers, period=4)
    bases = [rope.theta if w else 0 for w in windowed]
    text.expect(layer_rope_theta=bases)
    keys = (
        sizes.keys()
        | rope.keys()
        | {
            "final_logit_softcapping": text.number("final_logit_softcapping", 20.0),
            "logit_scale": text.number("output_multiplier"),
            "attention.sliding_window": text.integer("sliding_window"),
            "attention.sliding_window_pattern": windowed,
        }
    )
    # the checkpoint has one factor of normalised queries, and no weights
    scales = {"q": text.number("qk_scale_factor"), "k": 1.0}
    norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
    rules = Rules(
        names={"layers.post_attention_layernorm": "post_attention_norm", "layers.self_attn.gate_proj": "attn_gate"},
        recipes={f"{name}.weight": plus(1.0) for name in norms}
        | {"attn_q.weight": interleave(sizes.n_heads), "attn_k.weight": interleave(sizes.n_kv_heads)},
        constants={
            f"blk.{i}.attn_{n}_norm.weight": np.full(sizes.head_dim, scale, np.float32)
            for i in range(sizes.n_layers)
            for n, scale in scales.items()
        },
    )
    return make_layout(text, "muse-glimmer", keys, rules, vocab=sizes.vocab)
