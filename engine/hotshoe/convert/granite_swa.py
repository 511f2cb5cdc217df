"""Convert Granite with a sliding window, with experts or without."""

from __future__ import annotations

from hotshoe.convert import Checkpoint, FileLayout, Names, Rules, expert_keys, windowed_layers
from hotshoe.convert.granitemoe import scale_keys
from hotshoe.convert.llama import describe_llama

__all__ = ["describe"]

_SINKS: Names = {"layers.self_attn.sinks": "attn_sinks.weight"}
_EXPERTS: Names = {
    "layers.block_sparse_moe.router": "ffn_gate_inp",
    "layers.block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps",
    "layers.block_sparse_moe.experts.down_proj": "ffn_down_exps",
}
_OLD_EXPERTS: Names = {  # as Granite 3 has them
    "layers.block_sparse_moe.router.layer": "ffn_gate_inp",
    "layers.block_sparse_moe.input_linear": "ffn_gate_up_exps",
    "layers.block_sparse_moe.output_linear": "ffn_down_exps",
}
_SHARED: Names = {
    "layers.shared_mlp.input_linear": "ffn_up_shexp",
    "layers.shared_mlp.output_linear": "ffn_down_shexp",
}


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    n, keys, names = checkpoint.layers(), scale_keys(checkpoint), dict(_SINKS)
    keys["attention.sliding_window"] = checkpoint.integer("sliding_window", 128)
    keys["attention.sliding_window_pattern"] = windowed_layers(checkpoint, n, period=4, dense_first=True)
    bases, stated = checkpoint.config.get("layer_rope_theta"), checkpoint.config.get("no_rope_layers")
    if bases is not None:
        numbers = [base for base in bases if type(base) in (int, float)] if isinstance(bases, list) else []
        if numbers != bases or len({*numbers} - {0}) > 1:
            raise checkpoint.invalid("layer_rope_theta", bases, "a list, each 0 or the base of RoPE")
        keys |= {"rope.freq_base": float(max(bases))} if any(bases) else {}
        stated = stated or [int(base > 0) for base in bases]
    if stated:
        has_rope = checkpoint.kinds("no_rope_layers", n, (0, 1), stated)
        keys["attention.rope_pattern"] = [bool(has) for has in has_rope]
    if checkpoint.config.get("num_local_experts"):
        keys |= expert_keys(checkpoint, "num_local_experts", used=2)
        old = any(name.endswith("block_sparse_moe.input_linear.weight") for name in checkpoint.tensors)
        names |= _OLD_EXPERTS if old else _EXPERTS
    if checkpoint.config.get("shared_intermediate_size"):
        keys["expert_shared_feed_forward_length"] = checkpoint.integer("shared_intermediate_size")
        names |= _SHARED
    return describe_llama(checkpoint, None, keys, arch="granite_swa", tied=True, also=Rules(names=names))
