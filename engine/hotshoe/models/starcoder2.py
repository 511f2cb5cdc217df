"""StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173): Llama with LayerNorms, biases, and an MLP without a gate."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import LayerNormConfig, layers, submodule


class MLP(nn.MLP):
    activation = "gelu_tanh"


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: MLP = submodule()


class Model(nn.Decoder):
    config: LayerNormConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
