"""Nemotron 3 and 4 (NVIDIA 2024, arXiv:2402.16819) and Jais 2 (Inception 2025): LayerNorms, and squared ReLU."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import LayerNormConfig, layers, submodule


class MLP(nn.MLP):
    activation = "relu_squared"


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: MLP = submodule()


class Model(nn.Decoder):
    config: LayerNormConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
