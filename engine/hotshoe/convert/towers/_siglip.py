"""The tensors of SigLIP encoders, which the converters of several models share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotshoe.convert import Names

__all__ = ["SIGLIP_BIASES", "SIGLIP_NAMES"]

SIGLIP_NAMES: Names = {
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "layers.layer_norm1": "ln1",
    "layers.layer_norm2": "ln2",
    "layers.self_attn.out_proj": "attn_out",
    "post_layernorm": "v.post_ln",
}
_IN_LAYERS = ("ln1", "attn_q", "attn_k", "attn_v", "attn_out", "ln2", "ffn_up", "ffn_down")
SIGLIP_BIASES = [f"{name}.bias" for name in (*_IN_LAYERS, "v.post_ln")]
