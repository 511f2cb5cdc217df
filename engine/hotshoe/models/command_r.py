"""Command R, Command R+ and Aya (Cohere 2024): attention and MLP side by side, after one LayerNorm without bias.

The larger models normalise each head of queries and keys, each with weights of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, LayerNormByHead, LayerNormConfig, key, layers, rope_key, submodule
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LayerNormConfig):
    rope: RoPE = rope_key(interleaved=True)
    logit_scale: float = key("logit_scale", default=0.0)  # 0: not scaled


class Attention(nn.Attention):
    q_norm: LayerNormByHead | None = submodule(
        "attn_q_norm", optional=True, shape=lambda c, i: (c.n_heads[i], c.head_dim)
    )
    k_norm: LayerNormByHead | None = submodule(
        "attn_k_norm", optional=True, shape=lambda c, i: (c.n_kv_heads[i], c.head_dim)
    )


class ParallelBlock(nn.TransformerBlock):
    parallel = True
    mlp_norm = None
    mlp: GatedMLP = submodule()


class ScaledDecoder(nn.Decoder):
    @property
    def logit_scale(self) -> float:
        return self.config.logit_scale or 1.0


class Block(ParallelBlock):
    attention: Attention = submodule()


class Model(ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
