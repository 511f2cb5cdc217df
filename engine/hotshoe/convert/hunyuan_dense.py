"""Convert Hunyuan without experts (0.5B to 7B)."""

from __future__ import annotations

from typing import Any

from hotshoe.convert import Checkpoint, FileLayout, Names, Rope, Rules, make_layout, read_rope, read_sizes

__all__ = ["NORM_NAMES", "alpha_keys", "describe"]

NORM_NAMES: Names = {
    "layers.self_attn.query_layernorm": "attn_q_norm",
    "layers.self_attn.key_layernorm": "attn_k_norm",
}

_CONTEXT = 262_144  # of the models with alpha, of which some say 32768; llama.cpp's converter writes it too
_UNUSED = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # YaRN's, which this scaling does not use


def describe(checkpoint: Checkpoint) -> FileLayout:
    """Describe the file. Raises ModelFileError if config.json is invalid, ConversionError if GGUF cannot express it."""
    checkpoint.expect(hidden_act="silu", attention_bias=False, use_qk_norm=True, use_cla=False)
    sizes, rope = read_sizes(checkpoint), read_rope(checkpoint, "dynamic")
    keys = sizes.keys() | rope.keys() | alpha_keys(rope, sizes.head_dim)
    return make_layout(checkpoint, "hunyuan-dense", keys, Rules(names=NORM_NAMES), vocab=sizes.vocab)


def alpha_keys(rope: Rope, head_dim: int) -> dict[str, Any]:
    """The keys of RoPE whose base is scaled by ``alpha``: NTK-aware, as in transformers' model. Else none."""
    if rope.kind != "dynamic":
        return {}
    if rope.number("factor", 1.0) != 1.0:
        raise rope.checkpoint.refusal(f"the RoPE factor is {rope.settings['factor']}; alpha can only go with 1")
    for name in _UNUSED:
        rope.settings.get(name)
    return {
        "rope.freq_base": rope.theta * rope.number("alpha") ** (head_dim / max(head_dim - 2, 1)),
        "rope.scaling.type": "none",
        "rope.scaling.factor": 1.0,
        "rope.scaling.original_context_length": _CONTEXT,
        "context_length": _CONTEXT,
    }
