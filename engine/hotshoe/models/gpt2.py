"""GPT-2 (Radford et al. 2019), StarCoder 1 (Li et al. 2023, arXiv:2305.06161): learned positions and LayerNorms."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import LayerNormConfig, LearnedPositions, UnrotatedAttention, layers, submodule


class MLP(nn.MLP):
    activation = "gelu_tanh"


class Block(nn.TransformerBlock):
    attention: UnrotatedAttention = submodule()
    mlp: MLP = submodule()


class Model(nn.Decoder):
    config: LayerNormConfig
    positions: LearnedPositions = submodule("position_embd", shape=lambda c, i: (None, c.dim))
    blocks: list[Block] = layers("blk")


family = Family(Model)
