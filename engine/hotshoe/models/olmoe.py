"""OLMoE (Ai2 2024, arXiv:2409.02060): norms over all heads of queries and keys, and experts in every block."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertConfig, MixtureOfExperts, WideNormedAttention, key, layers, submodule


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    expert_dim: int = key("feed_forward_length", minimum=1)
    normalize_experts: bool = key("expert_weights_norm", default=False)


class Block(nn.TransformerBlock):
    attention: WideNormedAttention = submodule()
    mlp: MixtureOfExperts = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
