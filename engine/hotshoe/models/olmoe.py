"""OLMoE (Ai2 2024, arXiv:2409.02060): norms over all heads of queries and keys, and experts in every block."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertConfig, MixtureOfExperts, WideRMSNorm, key, layers, submodule


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    expert_dim: int = key("feed_forward_length", minimum=1)
    normalize_experts: bool = key("expert_weights_norm", default=False)


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
