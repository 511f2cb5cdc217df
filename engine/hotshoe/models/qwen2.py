"""Qwen2 and 2.5 (Yang et al. 2024, arXiv:2407.10671): Llama with biases on queries, keys and values."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, TextConfig, layers, submodule


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: TextConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
