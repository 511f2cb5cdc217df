"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Llama with a mixture of experts in every block."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.nn import MixtureOfExperts, TextConfig, key, layers, part, rope_key
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(interleaved=True)
    n_experts: int = key("expert_count", least=1)
    n_experts_used: int = key("expert_used_count", least=1)
    expert_dim: int = key("feed_forward_length", least=1)
    normalize_experts: bool = key("expert_weights_norm", default=True)


class Block(nn.PreNormBlock):
    attention: nn.Attention = part()
    mlp: MixtureOfExperts = part()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")

    Config = Config
