"""Convert Gemma 4: layers with a window have heads and RoPE of their own; the last layers share keys and values."""

from __future__ import annotations

import numpy as np

from hotshoe.convert import (
    Array,
    Checkpoint,
    FileLayout,
    Rope,
    Rules,
    make_layout,
    read_rope,
    read_sizes,
    windowed_layers,
)

__all__ = ["describe"]

_NOT_ROTATED = 1e30  # as a divisor of a frequency


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    # no layer of the 12B model reads vectors of its own
    per_layer = 0 if checkpoint.architecture == "Gemma4UnifiedForConditionalGeneration" else 256
    checkpoint = checkpoint.text()
    checkpoint.expect(hidden_activation="gelu_pytorch_tanh", attention_bias=False)
    checkpoint.require("use_bidirectional_attention", None, "vision")
    sizes = read_sizes(checkpoint, head_dim=256, n_kv_heads=4, default_eps=1e-6)
    rope = read_rope(checkpoint, "proportional", theta=1_000_000.0, local_theta=10_000.0)
    windowed = windowed_layers(checkpoint, sizes.n_layers, period=6)
    head_dim = _of_full(checkpoint, "global_head_dim", "head_dim", windowed) or 512
    n_kv_heads = _of_full(checkpoint, "num_global_key_value_heads", "num_key_value_heads", windowed)
    keys = sizes.keys() | {
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.key_length_swa": sizes.head_dim,
        "attention.value_length_swa": sizes.head_dim,
        "attention.sliding_window": checkpoint.integer("sliding_window", 512),
        "attention.sliding_window_pattern": windowed,
        "attention.shared_kv_layers": checkpoint.count("num_kv_shared_layers"),
        "embedding_length_per_layer_input": checkpoint.count("hidden_size_per_layer_input", per_layer),
        "rope.dimension_count": head_dim,
        "rope.dimension_count_swa": sizes.head_dim,
        "final_logit_softcapping": checkpoint.number("final_logit_softcapping", 0.0),
    }
    if n_kv_heads is not None:
        keys["attention.head_count_kv"] = [sizes.n_kv_heads if w else n_kv_heads for w in windowed]
    if checkpoint.config.get("use_double_wide_mlp"):
        own = sizes.n_layers - keys["attention.shared_kv_layers"]
        keys["feed_forward_length"] = [sizes.ff if i < own else 2 * sizes.ff for i in range(sizes.n_layers)]
    if checkpoint.config.get("enable_moe_block"):
        keys |= {
            "expert_count": checkpoint.integer("num_experts"),
            "expert_used_count": checkpoint.integer("top_k_experts"),
            "expert_feed_forward_length": checkpoint.integer("moe_intermediate_size"),
        }
    optional = {"layer_output_scale.weight": ".layer_scalar", "ffn_down_exps.scale": ".per_expert_scale"}
    rules = Rules(
        names={"layers.post_attention_layernorm": "post_attention_norm"},
        required=[name for name, end in optional.items() if any(t.endswith(end) for t in checkpoint.tensors)],
        constants={"rope_freqs.weight": _factors(head_dim, rope)},
    )
    return make_layout(checkpoint, "gemma4", keys | rope.keys(), rules, vocab=sizes.vocab, tied=True)


def _of_full(checkpoint: Checkpoint, name: str, name_in_layer: str, windowed: list[bool]) -> int | None:
    """A size of the full layers. transformers 5 writes it for each layer, earlier versions once."""
    if checkpoint.config.get(name) is not None:
        return checkpoint.integer(name)
    by_layer = checkpoint.config.get("per_layer_config")
    for i, has_window in enumerate(windowed):
        stated = by_layer.get(str(i)) if isinstance(by_layer, dict) and not has_window else None
        if isinstance(stated, dict) and name_in_layer in stated:
            if not isinstance(stated[name_in_layer], int):
                raise checkpoint.invalid(f"per_layer_config {name_in_layer}", stated[name_in_layer], "a number")
            return int(stated[name_in_layer])
    return None


def _factors(head_dim: int, rope: Rope) -> Array:
    """Divisors of the frequencies of full layers: those of elements that are not rotated are huge."""
    part = rope.share() if rope.kind == "proportional" else 1.0
    n = int(head_dim * part / 2)
    return np.array([1.0] * n + [_NOT_ROTATED] * (head_dim // 2 - n), np.float32)
