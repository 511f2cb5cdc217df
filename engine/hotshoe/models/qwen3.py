"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): no biases, and queries and keys normalised per head."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, RMSNorm, TextConfig, layers, part, tensor


class Attention(nn.Attention):
    q_norm: RMSNorm = tensor("attn_q_norm")
    k_norm: RMSNorm = tensor("attn_k_norm")


class Block(nn.PreNormBlock):
    attention: Attention = part()
    mlp: GatedMLP = part()


class Model(nn.Decoder):
    config: TextConfig
    blocks: list[Block] = layers("blk")

    Config = TextConfig


family = Family(Model)
