"""Multi-head attention, with the options that models differ in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotshoe.kvcache import AttentionSpec, AttentionView
from hotshoe.nn.basic import LayerNorm, Linear, RMSNorm
from hotshoe.nn.module import Module, submodule
from hotshoe_core import DType, Tensor, ops
from hotshoe_core.ops import RoPE

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

__all__ = ["Attention", "FusedAttention", "NormedAttention"]


class _Attention(Module):
    """Attention, however queries, keys and values are stored.

    A subclass declares the optional tensors that its files hold, with ``submodule`` or ``tensor``. It overrides the
    properties that its config expresses differently or that depend on the layer (``self.layer``).
    """

    out: Linear = submodule("attn_output", shape=lambda c, i: (c.dim, c.n_heads[i] * c.head_dim))
    q_norm: RMSNorm | LayerNorm | None = None
    """A norm over each query head, before RoPE."""
    k_norm: RMSNorm | LayerNorm | None = None
    """A norm over each key head, before RoPE."""
    sinks: Tensor | None = None
    """Attention sinks, (heads,): a logit of each head that takes a share of the softmax and has no value."""
    slopes: Tensor | None = None
    """ALiBi slopes, (heads,)."""
    both_sides: bool = False
    """In an encoder: ``window // 2`` positions before a token and as many after it are its window."""
    softcap: float = 0.0
    """Scores become ``softcap * tanh(scores / softcap)``; 0 for no cap."""

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
        """The rotary position embedding of queries and keys; None if the model has none."""
        rope: RoPE | None = self.config.rope
        return rope

    @property
    def rope_factors(self) -> Tensor | None:
        """Divisors of RoPE's frequencies, (rope.dim / 2,), or None."""
        return None

    @property
    def window(self) -> int:
        """How many positions a token sees, itself included; 0 for all."""
        window: int = self.config.window
        return window

    @property
    def scale(self) -> float:
        """The factor of the scores ``q @ k.T``."""
        scale: float = self.config.head_dim**-0.5
        return scale

    def cache_spec(self) -> AttentionSpec:
        """What the cache stores for this layer."""
        return AttentionSpec(
            self.n_kv_heads,
            self.config.head_dim,
            window=self.window,
            both_sides=self.both_sides and self.window > 0,
            rope=self.rope,
            rope_factors=self.rope_factors,
        )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (..., n, heads, head_dim), and keys and values (..., n, kv_heads, head_dim)."""
        raise NotImplementedError

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        """(..., n, dim) to (..., n, dim)."""
        q, k, v = self.project(x)
        if self.q_norm is not None:
            q = self.q_norm(q)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if self.rope is not None:
            q = ops.rope(q, batch.positions, self.rope_factors, config=self.rope)
            k = ops.rope(k, batch.positions, self.rope_factors, config=self.rope)
        k, v = view.update(k, v)
        mask = view.mask if self.slopes is None else view.mask + self._distances(self.slopes, batch, view)
        y = ops.attention(q, k, v, mask, self.sinks, scale=self.scale, softcap=self.softcap)
        return self.out(y.reshape(*x.shape[:-1], -1))

    def _distances(self, slopes: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        """ALiBi (Press et al. 2021, arXiv:2108.12409): distant positions get lower scores. (heads, n, m)."""
        positions = batch.positions.cast(DType.F32).reshape(-1, 1)  # (n, 1)
        distances = view.cell_positions.cast(DType.F32) - positions  # (n, m)
        return slopes.reshape(-1, 1, 1) * distances


class Attention(_Attention):
    """Attention with one matrix each for queries, keys and values, with a bias if the file has one."""

    q: Linear = submodule("attn_q", shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.dim))
    k: Linear = submodule("attn_k", shape=lambda c, i: (c.n_kv_heads[i] * c.head_dim, c.dim))
    v: Linear = submodule("attn_v", shape=lambda c, i: (c.n_kv_heads[i] * c.head_dim, c.dim))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def heads(y: Tensor, n: int) -> Tensor:
            return y.reshape(*x.shape[:-1], n, self.config.head_dim)

        return heads(self.q(x), self.n_heads), heads(self.k(x), self.n_kv_heads), heads(self.v(x), self.n_kv_heads)


class NormedAttention(Attention):
    """Attention with an RMS norm over each query head and each key head, after Henry et al. 2020, arXiv:2010.04245."""

    q_norm: RMSNorm = submodule("attn_q_norm", shape=lambda c, i: (c.head_dim,))
    k_norm: RMSNorm = submodule("attn_k_norm", shape=lambda c, i: (c.head_dim,))


class FusedAttention(_Attention):
    """Attention with one matrix whose rows are queries, then keys, then values."""

    qkv: Linear = submodule("attn_qkv", shape=lambda c, i: ((c.n_heads[i] + 2 * c.n_kv_heads[i]) * c.head_dim, c.dim))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, kv = self.n_heads, self.n_kv_heads
        qkv = self.qkv(x).reshape(*x.shape[:-1], q + 2 * kv, self.config.head_dim)
        return qkv[..., :q, :], qkv[..., q : q + kv, :], qkv[..., q + kv :, :]
