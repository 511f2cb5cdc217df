"""Gemma (Gemma Team 2024, arXiv:2403.08295): Llama with scaled embeddings and GELU."""

from __future__ import annotations

import math

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, TextConfig, layers, submodule


class MLP(GatedMLP):
    activation = "gelu_tanh"


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: MLP = submodule()


class ScaledDecoder(nn.Decoder):
    """What all Gemmas share: embeddings are multiplied by the root of their number of elements."""

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.config.dim)


class Model(ScaledDecoder):
    config: TextConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
