"""Phi-3, 3.5 and 4-mini (Abdin et al. 2024, arXiv:2404.14219): Llama with fused matrices and LongRoPE."""

from __future__ import annotations

from typing import Any

from hotshoe.kvcache import LayerCache
from hotshoe.models import llama, qwen2
from hotshoe.models.registry import register
from hotshoe.models.text import Batch
from hotshoe.nn import Linear, Module, RMSNorm, layers, parameter, part, tensor
from hotshoe_core import Tensor, ops


class Attention(Module):
    config: llama.Config
    qkv: Linear = tensor("attn_qkv")
    out: Linear = tensor("attn_output")

    def __call__(self, x: Tensor, batch: Batch, cache: LayerCache, factors: Tensor | None) -> Tensor:
        cfg = self.config
        qkv = self.qkv(x).reshape(-1, cfg.n_heads + 2 * cfg.n_kv_heads, cfg.head_dim)  # (n, heads, head_dim)
        q, k = qkv[:, : cfg.n_heads], qkv[:, cfg.n_heads : cfg.n_heads + cfg.n_kv_heads]
        v = qkv[:, cfg.n_heads + cfg.n_kv_heads :]
        q = ops.rope(q, batch.positions, factors, config=cfg.rope)
        k = ops.rope(k, batch.positions, factors, config=cfg.rope)
        y = ops.attention(q, *cache.update(k, v), cache.mask, scale=cfg.head_dim**-0.5)
        return self.out(y.reshape(-1, cfg.n_heads * cfg.head_dim))


class MLP(Module):
    gate_up: Linear = tensor("ffn_up")
    down: Linear = tensor("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2)
        return self.down(ops.swiglu(gate, up))


class Block(Module):
    attention_norm: RMSNorm = tensor("attn_norm")
    attention: Attention = part()
    mlp_norm: RMSNorm = tensor("ffn_norm")
    mlp: MLP = part()

    __call__ = llama.Block.__call__


@register("phi3")
class Model(llama.Model):
    blocks: list[Block] = layers("blk")
    long_factors: Tensor | None = parameter("rope_factors_long.weight", use="div", optional=True)
    short_factors: Tensor | None = parameter("rope_factors_short.weight", use="div", optional=True)

    Config: Any = qwen2.Config

    @property
    def factors(self) -> Tensor | None:
        """LongRoPE has one set of frequencies for the context it was first trained on, and one for longer ones."""
        cfg = self.config
        return self.long_factors if cfg.n_ctx > cfg.rope.original_context else self.short_factors
