"""DBRX (Databricks 2024): LayerNorms without bias, limited queries, keys and values, and experts in every layer."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertConfig, LayerNorm, LayerNormConfig, MixtureOfExperts, key, layers, submodule


@dataclass(frozen=True, kw_only=True)
class Config(LayerNormConfig, ExpertConfig):
    expert_dim: int = key("feed_forward_length", minimum=1)
    clamp: float = key("attention.clamp_kqv", default=0.0, minimum=0)


class Attention(nn.Attention):
    config: Config

    @property
    def clamp(self) -> float:
        return self.config.clamp


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp_norm: LayerNorm = submodule("attn_output_norm", shape=lambda c, i: (c.dim,))
    mlp: MixtureOfExperts = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
