"""Jina Embeddings 2 (Günther et al. 2023, arXiv:2310.19923): BERT with ALiBi on both sides, and a gated MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import bert
from hotshoe.nn import Embedding, GatedMLP, LayerNorm, layers, submodule
from hotshoe_core import Tensor

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch


class WideLayerNorm(LayerNorm):
    """A LayerNorm of all heads together."""

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.reshape(*x.shape[:-2], -1)).reshape(*x.shape)


class Attention(nn.AlibiAttention):
    # of the model for code only
    q_norm: WideLayerNorm | None = submodule("attn_q_norm", optional=True, shape=lambda c, i: (c.dim,))
    k_norm: WideLayerNorm | None = submodule("attn_k_norm", optional=True, shape=lambda c, i: (c.dim,))


class MLP(GatedMLP):
    activation = "gelu"


class Block(nn.PostNormBlock):
    attention: Attention = submodule()
    second_norm: LayerNorm | None = submodule("attn_norm_2", optional=True, shape=lambda c, i: (c.dim,))
    """A norm after the block's input was added again: of the model for code."""
    mlp: MLP = submodule()

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        y = self.attention_norm(x + self.attention(x, batch, view))
        if self.second_norm is not None:
            y = self.second_norm(x + y)
        return self.mlp_norm(y + self.mlp(y))


class Model(nn.Encoder):
    config: bert.Config
    token_types: Embedding = submodule("token_types", shape=lambda c, i: (None, c.dim))
    blocks: list[Block] = layers("blk")


family = Family(Model)
