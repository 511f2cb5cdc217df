"""Qwen3 with a mixture of experts in every block (Yang et al. 2025, arXiv:2505.09388)."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertConfig, MixtureOfExperts, RMSNorm, layers, part, tensor


class Attention(nn.Attention):
    q_norm: RMSNorm = tensor("attn_q_norm")
    k_norm: RMSNorm = tensor("attn_k_norm")


class Block(nn.PreNormBlock):
    attention: Attention = part()
    mlp: MixtureOfExperts = part()


class Model(nn.Decoder):
    config: ExpertConfig
    blocks: list[Block] = layers("blk")

    Config = ExpertConfig


family = Family(Model)
