"""Qwen3 with a mixture of experts in every block (Yang et al. 2025, arXiv:2505.09388)."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertConfig, MixtureOfExperts, layers, submodule


class Block(nn.TransformerBlock):
    attention: nn.NormedAttention = submodule()
    mlp: MixtureOfExperts = submodule()


class Model(nn.Decoder):
    config: ExpertConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
