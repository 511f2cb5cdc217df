"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Llama with a mixture of experts in every block."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.nn import ExpertConfig, MixtureOfExperts, key, layers, part, rope_key
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    rope: RoPE = rope_key(interleaved=True)
    expert_dim: int = key("feed_forward_length", least=1)


class Block(nn.PreNormBlock):
    attention: nn.Attention = part()
    mlp: MixtureOfExperts = part()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")

    Config = Config
