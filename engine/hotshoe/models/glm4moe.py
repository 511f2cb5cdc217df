"""GLM-4.5 to 4.7 (Zhipu AI 2025, arXiv:2508.06471): partial RoPE, and sigmoid experts after dense first layers."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import RMSNorm, SigmoidExpertsConfig, layers, submodule


class Attention(nn.Attention):
    # only the largest has these norms; files do not say so
    q_norm: RMSNorm | None = submodule("attn_q_norm", optional=True, shape=lambda c, i: (c.head_dim,))
    k_norm: RMSNorm | None = submodule("attn_k_norm", optional=True, shape=lambda c, i: (c.head_dim,))


class Block(nn.ExpertBlock):
    attention: Attention = submodule()
    mlp_norm: RMSNorm = submodule("post_attention_norm", shape=lambda c, i: (c.dim,))


class Model(nn.Decoder):
    config: SigmoidExpertsConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
