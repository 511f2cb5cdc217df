"""MiniMax-M2 (MiniMax 2025): norms over all heads of queries and keys, partial RoPE, and sigmoid experts."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertConfig, MixtureOfExperts, WideRMSNorm, gating_key, layers, submodule
from hotshoe.nn.experts import Gating


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    gating: Gating = gating_key("sigmoid")


class Attention(nn.Attention):
    q_norm: WideRMSNorm = submodule("attn_q_norm", shape=lambda c, i: (c.n_heads[i] * c.head_dim,))
    k_norm: WideRMSNorm = submodule("attn_k_norm", shape=lambda c, i: (c.n_kv_heads[i] * c.head_dim,))


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: MixtureOfExperts = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
