"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): Qwen2 without biases, with queries and keys normalised per head."""

from __future__ import annotations

from hotshoe.kvcache import LayerCache
from hotshoe.models import llama, qwen2
from hotshoe.models.registry import register
from hotshoe.models.text import Batch
from hotshoe.nn import RMSNorm, layers, part, tensor
from hotshoe_core import Tensor, ops


class Attention(llama.Attention):
    q_norm: RMSNorm = tensor("attn_q_norm")
    k_norm: RMSNorm = tensor("attn_k_norm")

    def __call__(self, x: Tensor, batch: Batch, cache: LayerCache, factors: Tensor | None) -> Tensor:
        cfg = self.config
        q = self.q_norm(self.q(x).reshape(-1, cfg.n_heads, cfg.head_dim))  # (n, heads, head_dim)
        k = self.k_norm(self.k(x).reshape(-1, cfg.n_kv_heads, cfg.head_dim))
        v = self.v(x).reshape(-1, cfg.n_kv_heads, cfg.head_dim)
        q = ops.rope(q, batch.positions, factors, config=cfg.rope)
        k = ops.rope(k, batch.positions, factors, config=cfg.rope)
        y = ops.attention(q, *cache.update(k, v), cache.mask, scale=cfg.head_dim**-0.5)
        return self.out(y.reshape(-1, cfg.n_heads * cfg.head_dim))


class Block(llama.Block):
    attention: Attention = part()


@register("qwen3")
class Model(qwen2.Model):
    blocks: list[Block] = layers("blk")
