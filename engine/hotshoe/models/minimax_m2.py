"""MiniMax-M2 (MiniMax 2025): norms over all heads of queries and keys, partial RoPE, and sigmoid experts."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertConfig, MixtureOfExperts, WideNormedAttention, gating_key, layers, submodule
from hotshoe.nn.experts import Gating


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    gating: Gating = gating_key("sigmoid")


class Block(nn.TransformerBlock):
    attention: WideNormedAttention = submodule()
    mlp: MixtureOfExperts = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
