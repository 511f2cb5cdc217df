"""Attention: queries, keys and values of each head, with all that models vary in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.kvcache import AttentionSpec, AttentionView
from hotshoe.nn.layers import LayerNorm, Linear, RMSNorm
from hotshoe.nn.module import Module, tensor
from hotshoe_core import DType, Tensor, ops
from hotshoe_core.ops import RoPE

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

__all__ = ["Attention", "FusedAttention"]


class _Attention(Module):
    """What does not depend on how queries, keys and values are stored.

    A model's own class declares, with ``tensor`` or ``parameter``, what of this its files hold, and overrides the
    properties that its config says in another way, or layer by layer (``self.layer``).
    """

    out: Linear = tensor("attn_output", shape=lambda c, i: (c.dim, c.n_heads[i] * c.head_dim))
    q_norm: RMSNorm | LayerNorm | None = None  # over each head's elements, before RoPE
    k_norm: RMSNorm | LayerNorm | None = None
    sinks: Tensor | None = None  # (heads,)
    slopes: Tensor | None = None  # (heads,): ALiBi's
    softcap: float = 0.0

    @property
    def n_heads(self) -> int:
        heads: int = self.config.n_heads[self.layer]
        return heads

    @property
    def n_kv_heads(self) -> int:
        heads: int = self.config.n_kv_heads[self.layer]
        return heads

    @property
    def rope(self) -> RoPE | None:
        """How queries and keys are turned by their positions; None where they are not."""
        rope: RoPE | None = self.config.rope
        return rope

    @property
    def rope_factors(self) -> Tensor | None:
        """(rope.dim / 2,), what RoPE's frequencies are divided by."""
        return None

    @property
    def window(self) -> int:
        """How many positions back a token looks, itself included; 0 for all."""
        window: int = self.config.window
        return window

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        scale: float = self.config.head_dim**-0.5
        return scale

    def cache_spec(self) -> AttentionSpec:
        """What this layer keeps."""
        return AttentionSpec(
            self.n_kv_heads,
            self.config.head_dim,
            window=self.window,
            rope=self.rope,
            rope_factors=self.rope_factors,
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (..., n, heads, head_dim), keys and values (..., n, kv_heads, head_dim)."""
        raise NotImplementedError

    def __call__(self, x: Tensor, batch: Batch, cache: AttentionView) -> Tensor:
        """(..., n, dim) to the same."""
        q, k, v = self.project(x)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if self.rope is not None:
            q = ops.rope(q, batch.positions, self.rope_factors, config=self.rope)
            k = ops.rope(k, batch.positions, self.rope_factors, config=self.rope)
        k, v = cache.update(k, v)
        mask = cache.mask if self.slopes is None else cache.mask + self._distances(self.slopes, batch, cache)
        y = ops.attention(q, k, v, mask, self.sinks, scale=self.scale, softcap=self.softcap)
        return self.out(y.reshape(*x.shape[:-1], -1))

    def _distances(self, slopes: Tensor, batch: Batch, cache: AttentionView) -> Tensor:
        """ALiBi (Press et al. 2021, arXiv:2108.12409): the farther back, the lower the score. (heads, n, m)."""
        positions = batch.positions.cast(DType.F32).reshape(-1, 1)  # (n, 1)
        back = cache.cell_positions.cast(DType.F32) - positions  # (n, m)
        return slopes.reshape(-1, 1, 1) * back


class Attention(_Attention):
    """Queries, keys and values by a matrix each; biases where the file has them."""

    q: Linear = tensor("attn_q", shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.dim))
    k: Linear = tensor("attn_k", shape=lambda c, i: (c.n_kv_heads[i] * c.head_dim, c.dim))
    v: Linear = tensor("attn_v", shape=lambda c, i: (c.n_kv_heads[i] * c.head_dim, c.dim))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def heads(y: Tensor, n: int) -> Tensor:
            return y.reshape(*x.shape[:-1], n, self.config.head_dim)

        return heads(self.q(x), self.n_heads), heads(self.k(x), self.n_kv_heads), heads(self.v(x), self.n_kv_heads)


class FusedAttention(_Attention):
    """Queries, keys and values by one matrix, in this order."""

    qkv: Linear = tensor("attn_qkv", shape=lambda c, i: ((c.n_heads[i] + 2 * c.n_kv_heads[i]) * c.head_dim, c.dim))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, kv = self.n_heads, self.n_kv_heads
        qkv = self.qkv(x).reshape(*x.shape[:-1], q + 2 * kv, self.config.head_dim)
        return qkv[..., :q, :], qkv[..., q : q + kv, :], qkv[..., q + kv :, :]
