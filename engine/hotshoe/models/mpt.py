"""MPT (MosaicML 2023): ALiBi or learned positions, LayerNorms without bias, and an MLP without a gate."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import MLP, AlibiAttention, LayerNormConfig, LearnedPositions, key, layers, submodule


@dataclass(frozen=True, kw_only=True)
class Config(LayerNormConfig):
    max_bias: float = key("attention.max_alibi_bias", default=0.0, minimum=0)
    clamp: float = key("attention.clamp_kqv", default=0.0, minimum=0)


class Attention(AlibiAttention):
    config: Config

    @property
    def max_bias(self) -> float:
        return self.config.max_bias

    @property
    def clamp(self) -> float:
        return self.config.clamp


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: MLP = submodule()


class Model(nn.Decoder):
    config: Config
    positions: LearnedPositions | None = submodule("position_embd", optional=True, shape=lambda c, i: (None, c.dim))
    blocks: list[Block] = layers("blk")


family = Family(Model)
