"""Falcon 1 and 2 (Almazrouei et al. 2023, arXiv:2311.16867): attention and MLP side by side, and LayerNorms."""

from __future__ import annotations

from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import MLP, LayerNorm, LayerNormConfig, layers, submodule
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor


class Block(nn.TransformerBlock):
    attention_norm: LayerNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    before_attention: LayerNorm | None = submodule("attn_norm_2", optional=True, shape=lambda c, i: (c.dim,))
    """In the 40B and 180B, attention has a norm of its own."""
    attention: nn.Attention = submodule()
    mlp_norm = None
    mlp: MLP = submodule()

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        normed = self.attention_norm(x)
        read = normed if self.before_attention is None else self.before_attention(x)
        return x + self.attention(read, batch, view) + self.mlp(normed)


class Model(nn.Decoder):
    config: LayerNormConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
