"""Phi 1, 1.5 and 2 (Microsoft 2023, arXiv:2306.11644): attention and a plain MLP side by side, after one LayerNorm."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import LayerNormConfig, Linear, layers, submodule


class MLP(nn.MLP):
    activation = "gelu_tanh"


class Block(nn.TransformerBlock):
    parallel = True
    attention: nn.Attention = submodule()
    mlp_norm = None
    mlp: MLP = submodule()


class Model(nn.Decoder):
    config: LayerNormConfig
    blocks: list[Block] = layers("blk")
    output: Linear = submodule("output", shape=lambda c, i: (None, c.dim))


family = Family(Model)
