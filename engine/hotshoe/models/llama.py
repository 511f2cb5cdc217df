"""Llama (Touvron et al. 2023, arXiv:2302.13971; Llama 3, arXiv:2407.21783), and Mistral, which has its architecture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe.kvcache import LayerCache
from hotshoe.models.registry import register
from hotshoe.models.text import Batch
from hotshoe.nn import Embedding, Linear, Module, RMSNorm, layers, parameter, part, rope_from, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True)
class Config:
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    dim: int
    n_ctx: int
    norm_eps: float
    rope: RoPE
    window: int

    @classmethod
    def from_metadata(cls, metadata: Metadata, interleaved: bool = True) -> Config:
        arch = metadata.arch
        n_heads = arch.require("attention.head_count", int)
        dim = arch.require("embedding_length", int)
        head_dim = arch.get("attention.key_length", dim // n_heads)
        return cls(
            n_layers=arch.require("block_count", int),
            n_heads=n_heads,
            n_kv_heads=arch.get("attention.head_count_kv", n_heads),
            head_dim=head_dim,
            dim=dim,
            n_ctx=arch.require("context_length", int),
            norm_eps=arch.require("attention.layer_norm_rms_epsilon", float),
            rope=rope_from(metadata, head_dim, interleaved=interleaved),
            window=arch.get("attention.sliding_window", 0),
        )

    @property
    def windows(self) -> tuple[int, ...]:
        return (self.window,) * self.n_layers


class Attention(Module):
    config: Config
    q: Linear = tensor("attn_q")
    k: Linear = tensor("attn_k")
    v: Linear = tensor("attn_v")
    out: Linear = tensor("attn_output")

    def __call__(self, x: Tensor, batch: Batch, cache: LayerCache, factors: Tensor | None) -> Tensor:
        cfg = self.config
        q = self.q(x).reshape(-1, cfg.n_heads, cfg.head_dim)  # (n, heads, head_dim)
        k = self.k(x).reshape(-1, cfg.n_kv_heads, cfg.head_dim)
        v = self.v(x).reshape(-1, cfg.n_kv_heads, cfg.head_dim)
        q = ops.rope(q, batch.positions, factors, config=cfg.rope)
        k = ops.rope(k, batch.positions, factors, config=cfg.rope)
        y = ops.attention(q, *cache.update(k, v), cache.mask, scale=cfg.head_dim**-0.5)
        return self.out(y.reshape(-1, cfg.n_heads * cfg.head_dim))


class MLP(Module):
    gate: Linear = tensor("ffn_gate")
    up: Linear = tensor("ffn_up")
    down: Linear = tensor("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(ops.swiglu(self.gate(x), self.up(x)))


class Block(Module):
    attention_norm: RMSNorm = tensor("attn_norm")
    attention: Attention = part()
    mlp_norm: RMSNorm = tensor("ffn_norm")
    mlp: MLP = part()

    def __call__(self, x: Tensor, batch: Batch, cache: LayerCache, factors: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), batch, cache, factors)
        return x + self.mlp(self.mlp_norm(x))


@register("llama")
class Model(Module):
    config: Config
    tokens: Embedding = tensor("token_embd")
    blocks: list[Block] = layers("blk")
    norm: RMSNorm = tensor("output_norm")
    output: Linear = tensor("output", "token_embd")  # many small models share the two
    rope_factors: Tensor | None = parameter("rope_freqs.weight", use="div", optional=True)

    Config: Any = Config

    @property
    def factors(self) -> Tensor | None:
        """(head_dim / 2,), what RoPE's frequencies are divided by."""
        return self.rope_factors

    def rope_of(self, layer: int) -> tuple[RoPE, Tensor | None]:
        """How a layer turns keys by their positions."""
        return self.config.rope, self.factors

    def __call__(self, batch: Batch, cache: list[LayerCache]) -> Tensor:
        """Logits of the rows in ``batch.outputs``: (k, vocab)."""
        x = self.tokens(batch.tokens)
        for block, layer in zip(self.blocks, cache, strict=True):
            x = block(x, batch, layer, self.factors)
        return self.output(self.norm(x.take(batch.outputs)))
