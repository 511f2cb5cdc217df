"""Convert Gemma 4, text only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe.convert import Rules, expert_keys, make_layout, read_rope, read_sizes, windowed_layers

if TYPE_CHECKING:
    from hotshoe.convert import Checkpoint, FileLayout

__all__ = ["describe"]

_NAMES = {
    "layers.post_attention_layernorm": "post_attention_norm",
    "layers.post_feedforward_layernorm_1": "post_ffw_norm_1",
    "layers.post_feedforward_layernorm_2": "post_ffw_norm_2",
    "layers.pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "layers.router.proj": "ffn_gate_inp",
    "layers.router.scale": "ffn_gate_inp.scale",
    "layers.router.per_expert_scale": "ffn_down_exps.scale",
    "layers.experts.gate_up_proj": "ffn_gate_up_exps",
    "layers.experts.down_proj": "ffn_down_exps",
    "layers.layer_scalar": "layer_output_scale",
    "layers.per_layer_input_gate": "inp_gate",
    "layers.per_layer_projection": "proj",
    "layers.post_per_layer_input_norm": "post_norm",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}
_NOT_ROTATED = 1e30  # as a divisor of a frequency


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.require("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
    checkpoint.require("attention_bias", False, False)
    checkpoint.require("use_bidirectional_attention", None, "vision")
    sizes = read_sizes(checkpoint, head_dim=256, n_kv_heads=4)
    rope = read_rope(checkpoint, "proportional", theta=1_000_000.0, local_theta=10_000.0)
    windowed = windowed_layers(checkpoint, sizes.n_layers, 6)
    head_dim = _of_full(checkpoint, "global_head_dim", "head_dim", windowed) or 512
    n_kv_heads = _of_full(checkpoint, "num_global_key_value_heads", "num_key_value_heads", windowed)
    keys = sizes.keys() | {
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.key_length_swa": sizes.head_dim,
        "attention.value_length_swa": sizes.head_dim,
        "attention.sliding_window": checkpoint.integer("sliding_window", 512),
        "attention.sliding_window_pattern": windowed,
        "attention.shared_kv_layers": int(checkpoint.number("num_kv_shared_layers", 0)),
        "embedding_length_per_layer_input": int(checkpoint.number("hidden_size_per_layer_input", 256)),
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
    n_rotated = int(head_dim * rope.number("partial_rotary_factor", 1.0) / 2) if rope.kind == "proportional" else head_dim // 2
    factors = np.array([1.0] * n_rotated + [_NOT_ROTATED] * (head_dim // 2 - n_rotated), np.float32)
    rules = Rules(
        names={name: row for name, row in _NAMES.items() if _has(checkpoint, name)},
        required=[...],
        constants={"rope_freqs.weight": factors},
    )
    return make_layout(checkpoint, "gemma4", keys | rope.keys(), rules, vocab=sizes.vocab, tied=True)
