"""Hunyuan-A13B (Tencent 2025): norms on queries and keys after RoPE, and a shared expert in every block."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models.hunyuan_dense import Attention
from hotshoe.nn import ExpertConfig, MixtureOfExperts, layers, submodule


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: MixtureOfExperts = submodule()


class Model(nn.Decoder):
    config: ExpertConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
