"""BERT (Devlin et al. 2018, arXiv:1810.04805): encoder of MiniLM, BGE, GTE, E5 and other embedding models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hotshoe.models.registry import register
from hotshoe.nn import Embedding, LayerNorm, Linear, Module, layers, part, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata


class Batch(NamedTuple):
    """Texts padded to one length. Inputs of a graph, all but the first of which follow from the lengths."""

    tokens: Tensor  # (batch, n) I32
    positions: Tensor  # (n,) I32
    mask: Tensor  # (batch, 1, 1, n): 0, or -inf on padding


@dataclass(frozen=True, slots=True)
class Config:
    n_layers: int
    n_heads: int
    dim: int
    n_ctx: int
    norm_eps: float

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Config:
        arch = metadata.arch
        return cls(
            n_layers=arch.require("block_count", int),
            n_heads=arch.require("attention.head_count", int),
            dim=arch.require("embedding_length", int),
            n_ctx=arch.require("context_length", int),
            norm_eps=arch.require("attention.layer_norm_epsilon", float),
        )

    @property
    def head_dim(self) -> int:
        return self.dim // self.n_heads


class Attention(Module):
    config: Config
    q: Linear = tensor("attn_q")
    k: Linear = tensor("attn_k")
    v: Linear = tensor("attn_v")
    out: Linear = tensor("attn_output")

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = (*x.shape[:-1], self.config.n_heads, self.config.head_dim)  # (batch, n, heads, head_dim)
        q, k, v = self.q(x).reshape(*heads), self.k(x).reshape(*heads), self.v(x).reshape(*heads)
        y = ops.attention(q, k, v, mask, scale=self.config.head_dim**-0.5)
        return self.out(y.reshape(*x.shape))


class MLP(Module):
    up: Linear = tensor("ffn_up")
    down: Linear = tensor("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).gelu())


class Block(Module):
    attention: Attention = part()
    attention_norm: LayerNorm = tensor("attn_output_norm")
    mlp: MLP = part()
    mlp_norm: LayerNorm = tensor("layer_output_norm")

    def __call__(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        return self.mlp_norm(x + self.mlp(x))


@register("bert")
class Model(Module):
    config: Config
    tokens: Embedding = tensor("token_embd")
    token_types: Embedding = tensor("token_types")
    positions: Embedding = tensor("position_embd")
    norm: LayerNorm = tensor("token_embd_norm")
    blocks: list[Block] = layers("blk")

    Config = Config
    many_rows = True

    def __call__(self, batch: Batch) -> Tensor:
        """Hidden states of the last layer: (batch, n, dim)."""
        x = self.tokens(batch.tokens) + self.positions(batch.positions)
        x = self.norm(x + self.token_types.weight[0])  # one text alone is of type 0
        for block in self.blocks:
            x = block(x, batch.mask)
        return x
