"""Gemma 3, text (Gemma Team 2025, arXiv:2503.19786): sliding windows and some global layers."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hotshoe.kvcache import LayerCache
from hotshoe.models.registry import register
from hotshoe.models.text import Batch
from hotshoe.nn import Embedding, Linear, Module, RMSNorm, layers, part, rope_from, tensor
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
    rope: RoPE  # of global layers
    local_rope: RoPE
    window: int
    pattern: int  # every so many layers, one is global
    scale: float
    softcap: float

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Config:
        arch = metadata.arch
        n_heads, dim = arch.require("attention.head_count", int), arch.require("embedding_length", int)
        head_dim = arch.get("attention.key_length", 256)
        n_layers = arch.require("block_count", int)
        rope = rope_from(metadata, head_dim, interleaved=False, base=1e6)
        local = dataclasses.replace(rope, base=arch.get("rope.freq_base_swa", 10000.0), scale=1.0, ext_factor=0.0)
        return cls(
            n_layers=n_layers,
            n_heads=n_heads,
            n_kv_heads=arch.get("attention.head_count_kv", n_heads),
            head_dim=head_dim,
            dim=dim,
            n_ctx=arch.require("context_length", int),
            norm_eps=arch.require("attention.layer_norm_rms_epsilon", float),
            rope=rope,
            local_rope=local,
            window=arch.require("attention.sliding_window", int),
            pattern=arch.get("attention.sliding_window_pattern", 6),
            scale=arch.get("attention.scale", (dim / n_heads if n_layers == _LAYERS_27B else head_dim) ** -0.5),
            softcap=arch.get("final_logit_softcapping", 0.0),
        )

    @property
    def windows(self) -> tuple[int, ...]:
        return tuple(0 if (i + 1) % self.pattern == 0 else self.window for i in range(self.n_layers))

    def rope_of(self, layer: int) -> RoPE:
        return self.local_rope if self.windows[layer] else self.rope


_LAYERS_27B = 62  # the one size whose scores are scaled by its width per head; the file does not say so


class Attention(Module):
    config: Config
    q: Linear = tensor("attn_q")
    k: Linear = tensor("attn_k")
    v: Linear = tensor("attn_v")
    q_norm: RMSNorm = tensor("attn_q_norm")
    k_norm: RMSNorm = tensor("attn_k_norm")
    out: Linear = tensor("attn_output")

    def __call__(self, x: Tensor, batch: Batch, cache: LayerCache) -> Tensor:
        cfg = self.config
        rope = cfg.rope_of(self.layer)
        q = self.q_norm(self.q(x).reshape(-1, cfg.n_heads, cfg.head_dim))  # (n, heads, head_dim)
        k = self.k_norm(self.k(x).reshape(-1, cfg.n_kv_heads, cfg.head_dim))
        v = self.v(x).reshape(-1, cfg.n_kv_heads, cfg.head_dim)
        q, k = ops.rope(q, batch.positions, config=rope), ops.rope(k, batch.positions, config=rope)
        y = ops.attention(q, *cache.update(k, v), cache.mask, scale=cfg.scale)
        return self.out(y.reshape(-1, cfg.n_heads * cfg.head_dim))


class MLP(Module):
    gate: Linear = tensor("ffn_gate")
    up: Linear = tensor("ffn_up")
    down: Linear = tensor("ffn_down")

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(ops.geglu(self.gate(x), self.up(x), approximate="tanh"))


class Block(Module):
    attention_norm: RMSNorm = tensor("attn_norm")
    attention: Attention = part()
    after_attention: RMSNorm = tensor("post_attention_norm")
    mlp_norm: RMSNorm = tensor("ffn_norm")
    mlp: MLP = part()
    after_mlp: RMSNorm = tensor("post_ffw_norm")

    def __call__(self, x: Tensor, batch: Batch, cache: LayerCache) -> Tensor:
        x = x + self.after_attention(self.attention(self.attention_norm(x), batch, cache))
        return x + self.after_mlp(self.mlp(self.mlp_norm(x)))


@register("gemma3")
class Model(Module):
    config: Config
    tokens: Embedding = tensor("token_embd")
    blocks: list[Block] = layers("blk")
    norm: RMSNorm = tensor("output_norm")
    output: Linear = tensor("output", "token_embd")

    Config: Any = Config

    def rope_of(self, layer: int) -> tuple[RoPE, Tensor | None]:
        """How a layer turns keys by their positions."""
        return self.config.rope_of(layer), None

    def __call__(self, batch: Batch, cache: list[LayerCache]) -> Tensor:
        """Logits of the rows in ``batch.outputs``: (k, vocab)."""
        x = self.tokens(batch.tokens) * self.config.dim**0.5
        for block, layer in zip(self.blocks, cache, strict=True):
            x = block(x, batch, layer)
        logits = self.output(self.norm(x.take(batch.outputs)))
        cap = self.config.softcap
        return (logits * (1 / cap)).tanh() * cap if cap else logits
