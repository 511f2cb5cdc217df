"""GPT-2 (Radford et al. 2019): learned positions, LayerNorms, biases, and an MLP without a gate."""

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
