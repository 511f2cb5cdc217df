"""MiniCPM 3 (OpenBMB 2024): latent attention with LongRoPE; embeddings, halves of blocks and logits are scaled."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import granitemoe, phi3
from hotshoe.nn import GatedMLP, key, layers, submodule
from hotshoe.nn.latent import LatentAttention, LatentConfig


@dataclass(frozen=True, kw_only=True)
class Config(LatentConfig):
    expert_dim: int = key("expert_feed_forward_length", default=0)
    v_dim: int = key("attention.value_length", minimum=1, default=lambda c: c.dim // c.n_heads[0])
    # no file has the scales: they are those of the published model
    embedding_scale: float = key("embedding_scale", default=12.0)
    residual_scale: float = key("residual_scale", default=lambda c: 1.4 / c.n_layers**0.5)
    logit_divisor: float = key("logit_scale", minimum=1e-6, default=lambda c: c.dim / 256)


class Attention(phi3.LongFactors, LatentAttention):
    pass


class Block(granitemoe.ScaledBlock):
    attention: Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(granitemoe.ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
