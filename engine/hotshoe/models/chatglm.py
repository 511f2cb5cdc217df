"""ChatGLM 3 and GLM-4-9B (Zhipu 2024, arXiv:2406.12793): RoPE on half of each head, biases, packed matrices."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import glm4
from hotshoe.nn import GatedMLP, layers, submodule


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: glm4.Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
