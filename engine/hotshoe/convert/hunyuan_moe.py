"""Convert Hunyuan-A13B: a shared expert in every layer, and RoPE whose base is scaled."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Names, Rules, make_layout, read_rope, read_sizes
from hotshoe.convert.hunyuan_dense import NORM_NAMES, alpha_keys

__all__ = ["describe"]

_NAMES: Names = {
    **NORM_NAMES,
    "layers.mlp.gate.wg": "ffn_gate_inp",
    "layers.mlp.shared_mlp.gate_proj": "ffn_gate_shexp",
    "layers.mlp.shared_mlp.up_proj": "ffn_up_shexp",
    "layers.mlp.shared_mlp.down_proj": "ffn_down_shexp",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=False, use_qk_norm=True, use_cla=False)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "dynamic")
    keys = sizes.keys() | rope.keys() | {"expert_shared_feed_forward_length": sizes.ff}
    keys |= {
        "expert_count": checkpoint.integer("num_experts"),
        "expert_used_count": _same(checkpoint, "moe_topk", 1),
        "expert_feed_forward_length": _same(checkpoint, "moe_intermediate_size", sizes.ff),
        "expert_shared_count": _same(checkpoint, "num_shared_expert", 1),
    }
    keys |= alpha_keys(rope, sizes.head_dim)
    return make_layout(checkpoint, "hunyuan-moe", keys, Rules(names=_NAMES), vocab=sizes.vocab)


def _same(checkpoint: Checkpoint, key: str, default: int) -> int:
    """A number that config.json gives once, or once for each layer. Raises ConversionError if layers differ."""
    stated = checkpoint.config.get(key)
    values = stated if isinstance(stated, list) else [default if stated is None else stated]
    if not values or any(type(value) is not int or value < 1 for value in values):
        raise checkpoint.invalid(key, stated, "a whole number of at least 1, or one for each layer")
    if len(set(values)) > 1:
        found = sorted(set(values))
        raise checkpoint.refusal(f"{key} is {found}; a GGUF file can only express one value for all layers")
    return int(values[0])
