"""Muse Glimmer (Meta 2026), text only: norms around both halves, gated attention, and a window in most layers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import (
    GatedMLP,
    LayerPattern,
    Linear,
    RMSNorm,
    TextConfig,
    UnweightedRMSNorm,
    key,
    layers,
    pattern_key,
    rope_key,
    submodule,
)
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    window: int = key("attention.sliding_window", minimum=1)
    rope: RoPE = rope_key(interleaved=True)
    pattern: LayerPattern = pattern_key(4, rope_on_full=False)
    softcap: float = key("final_logit_softcapping", default=0.0)
    logit_scale: float = key("logit_scale")


class Attention(nn.NormedAttention):
    gate: Linear = submodule("attn_gate", shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.dim))


class PostNorm(RMSNorm):
    eps = 1e-8


class Block(nn.SandwichBlock):
    attention: Attention = submodule()
    post_attention_norm: PostNorm = submodule("post_attention_norm", shape=lambda c, i: (c.dim,))
    mlp: GatedMLP = submodule()
    post_mlp_norm: PostNorm = submodule("post_ffw_norm", shape=lambda c, i: (c.dim,))


class Model(nn.Decoder):
    config: Config
    embedding_norm: UnweightedRMSNorm = submodule()
    blocks: list[Block] = layers("blk")

    @property
    def logit_scale(self) -> float:
        return self.config.logit_scale

    @property
    def final_softcap(self) -> float:
        return self.config.softcap


family = Family(Model)
