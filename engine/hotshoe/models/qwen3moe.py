"""Qwen3 with a mixture of experts in every block (arXiv:2505.09388)."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import MixtureOfExperts, RMSNorm, TextConfig, key, layers, part, tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    n_experts: int = key("expert_count", least=1)
    n_experts_used: int = key("expert_used_count", least=1)
    expert_dim: int = key("expert_feed_forward_length", least=1)
    normalize_experts: bool = key("expert_weights_norm", default=True)


class Attention(nn.Attention):
    q_norm: RMSNorm = tensor("attn_q_norm")
    k_norm: RMSNorm = tensor("attn_k_norm")


class Block(nn.PreNormBlock):
    attention: Attention = part()
    mlp: MixtureOfExperts = part()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")

    Config = Config


family = Family(Model)
