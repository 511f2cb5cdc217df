"""Qwen2 and 2.5 (Yang et al. 2024, arXiv:2407.10671): biases on queries, keys and values, and GPT-NeoX's rotation."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, TextConfig, layers, part


class Block(nn.PreNormBlock):
    attention: nn.Attention = part()
    mlp: GatedMLP = part()


class Model(nn.Decoder):
    config: TextConfig
    blocks: list[Block] = layers("blk")

    Config = TextConfig


family = Family(Model)
