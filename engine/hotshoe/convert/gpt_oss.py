"""Convert gpt-oss: experts in one transposed tensor, whose columns are gate and up by turns."""

from __future__ import annotations

from hotshoe.convert import (
    Checkpoint,
    FileLayout,
    Names,
    Recipe,
    Rules,
    expert_keys,
    make_layout,
    read_rope,
    read_sizes,
    window_keys,
)

__all__ = ["describe"]

_NAMES: Names = {
    "layers.self_attn.sinks": "attn_sinks.weight",
    "layers.post_attention_layernorm": "post_attention_norm",
    "layers.mlp.router": "ffn_gate_inp",
    "layers.mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "layers.mlp.experts.down_proj_bias": "ffn_down_exps.bias",
}
_BIASES = ("ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", swiglu_alpha=1.702, swiglu_limit=7.0)
    sizes, rope = read_sizes(checkpoint, head_dim=64, n_kv_heads=8), read_rope(checkpoint, "yarn", theta=150_000.0)
    keys = sizes.keys() | rope.keys() | expert_keys(checkpoint, "num_local_experts", used=4)
    keys |= window_keys(checkpoint, sizes.n_layers, period=2) | {"expert_feed_forward_length": sizes.ff}
    if rope.kind == "yarn":  # readers do not round, so a checkpoint that does needs the key
        keys.setdefault("hotshoe.rope.yarn_truncate", True)
    n, dim, ff = keys["expert_count"], sizes.dim, sizes.ff
    attention = checkpoint.biases(attention_bias=("attn_q", "attn_k", "attn_v", "attn_output"))
    if any(t.dtype == "MXFP4" for t in checkpoint.tensors.values()):  # as published: not transposed
        matrices = {
            "ffn_gate_exps.weight": Recipe(lambda v: v[:, ::2], (n, 2 * ff, dim), by_rows=True),
            "ffn_up_exps.weight": Recipe(lambda v: v[:, 1::2], (n, 2 * ff, dim), by_rows=True),
        }
    else:
        matrices = {
            "ffn_gate_exps.weight": Recipe(lambda v: v[..., ::2].swapaxes(1, 2), (n, dim, 2 * ff)),
            "ffn_up_exps.weight": Recipe(lambda v: v[..., 1::2].swapaxes(1, 2), (n, dim, 2 * ff)),
            "ffn_down_exps.weight": Recipe(lambda v: v.swapaxes(1, 2), (n, ff, dim)),
        }
    biases = {
        "ffn_gate_exps.bias": Recipe(lambda v: v[:, ::2], (n, 2 * ff)),
        "ffn_up_exps.bias": Recipe(lambda v: v[:, 1::2], (n, 2 * ff)),
    }
    required = [*attention, *(f"{name}.bias" for name in _BIASES)]
    rules = Rules(names=_NAMES, required=required, recipes=matrices | biases)
    return make_layout(checkpoint, "gpt-oss", keys, rules, vocab=sizes.vocab)
