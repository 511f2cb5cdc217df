"""Multi-head latent attention (MLA): DeepSeek-V2, arXiv:2405.04434. One latent for all heads replaces keys and values.

The cache stores the latent. The matrices that would expand it to keys and values are applied to the queries and to the
result instead. So all heads share one key of ``kv_rank + rope.dim`` elements, and the first ``kv_rank`` of these are
also the value. Files of 2024 hold both matrices as one, which cannot be applied so: the cache then stores the expanded
keys and values of each head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotshoe.kvcache import AttentionSpec, AttentionView
from hotshoe.nn.basic import Linear, RMSNorm
from hotshoe.nn.bounds import check_range
from hotshoe.nn.config import derived, key
from hotshoe.nn.experts import ExpertLayersConfig
from hotshoe.nn.module import Module, submodule, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch
    from hotshoe.nn.positions import Temperature

__all__ = ["LatentAttention", "LatentConfig"]


def _length(name: str) -> Any:
    """Elements of a head. Files for a cache of latents have another key for it."""

    def get(metadata: Metadata, *_: Any) -> int:
        latent = f"{name}_mla"
        found = latent if latent in metadata.arch else name
        return check_range(metadata, found, metadata.arch.require(found, int), 1)

    return derived(get)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig(ExpertLayersConfig):
    """The config of text models with latent attention. They may have experts."""

    head_dim: int = _length("attention.key_length")
    """Elements of a head's query and key, including those that RoPE rotates."""
    v_dim: int = _length("attention.value_length")
    window: int = derived(lambda *_: 0)
    latent_cache: bool = derived(lambda metadata, *_: "attention.key_length_mla" in metadata.arch)
    """False if the cache stores expanded keys and values."""
    q_rank: int = key("attention.q_lora_rank", default=0)
    """The rank of the queries; 0 if one matrix computes them."""
    kv_rank: int = key("attention.kv_lora_rank", minimum=1)
    """Elements of the latent."""

    @property
    def plain_dim(self) -> int:
        """Elements of a head's query and key that RoPE does not rotate."""
        return self.head_dim - self.rope.dim


class LowRankQueries(Module):
    down: Linear = submodule("attn_q_a", shape=lambda c, i: (c.q_rank, c.dim))
    norm: RMSNorm = submodule("attn_q_a_norm", shape=lambda c, i: (c.q_rank,))
    up: Linear = submodule("attn_q_b", shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.q_rank))

    def __call__(self, x: Tensor) -> Tensor:
        return self.up(self.norm(self.down(x)))


class LatentAttention(Module):
    """Latent attention: (n, dim) to (n, dim)."""

    config: LatentConfig
    q: Linear | None = submodule(
        "attn_q", when=lambda c, i: not c.q_rank, shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.dim)
    )
    low_rank_q: LowRankQueries | None = submodule(when=lambda c, i: c.q_rank > 0)
    kv_down: Linear = submodule("attn_kv_a_mqa", shape=lambda c, i: (c.kv_rank + c.rope.dim, c.dim))
    kv_norm: RMSNorm = submodule("attn_kv_a_norm", shape=lambda c, i: (c.kv_rank,))
    k_up: Tensor = tensor(
        "attn_k_b.weight", use="matmul",
        when=lambda c, i: c.latent_cache, shape=lambda c, i: (c.n_heads[i], c.kv_rank, c.plain_dim),
    )  # fmt: skip
    v_up: Tensor = tensor(
        "attn_v_b.weight", use="matmul",
        when=lambda c, i: c.latent_cache, shape=lambda c, i: (c.n_heads[i], c.v_dim, c.kv_rank),
    )  # fmt: skip
    kv_up: Linear | None = submodule(  # the rows of each head: its keys, then its values
        "attn_kv_b",
        when=lambda c, i: not c.latent_cache, shape=lambda c, i: (c.n_heads[i] * (c.plain_dim + c.v_dim), c.kv_rank),
    )  # fmt: skip
    out: Linear = submodule("attn_output", shape=lambda c, i: (c.dim, c.n_heads[i] * c.v_dim))

    @property
    def rope(self) -> RoPE | None:
        """The RoPE of the last elements of queries and keys; None if they are not rotated."""
        return self.config.rope

    @property
    def rope_factors(self) -> Tensor | None:
        """Divisors of RoPE's frequencies, (rope.dim / 2,), or None."""
        return None

    @property
    def scale(self) -> float:
        """The factor of the scores."""
        scale: float = self.config.head_dim**-0.5
        return scale

    @property
    def temperature(self) -> Temperature | None:
        """How queries are scaled by their positions; None if they are not."""
        return None

    def cache_spec(self) -> AttentionSpec:
        """What the cache stores for this layer."""
        c, start = self.config, self.config.kv_rank if self.config.latent_cache else self.config.plain_dim
        rope: Any = {"rope": self.rope, "rope_start": start, "rope_factors": self.rope_factors}
        if not c.latent_cache:
            return AttentionSpec(c.n_heads[self.layer], c.head_dim, c.v_dim, **rope)
        return AttentionSpec(1, c.kv_rank + c.rope.dim, v_in_k=c.kv_rank, **rope)

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        cfg = self.config
        q = self.queries(x, batch)  # (n, heads, head_dim)
        q_rotated = self._rotate(q[..., cfg.plain_dim :], batch)
        q = q[..., : cfg.plain_dim] if self.kv_up is not None else _by_head(q[..., : cfg.plain_dim], self.k_up)
        kv = self.kv_down(x)[:, None]  # (n, 1, kv_rank + rope.dim)
        k_rotated = self._rotate(kv[..., cfg.kv_rank :], batch)
        latent = self.kv_norm(kv[..., : cfg.kv_rank])
        if self.kv_up is None:
            k, v = view.update(ops.concat(latent, k_rotated, axis=-1))
        else:
            expanded = self.kv_up(latent).reshape(*q.shape[:-1], -1)  # (n, heads, plain_dim + v_dim)
            k = ops.concat(expanded[..., : cfg.plain_dim], k_rotated.expand(*q_rotated.shape), axis=-1)
            k, v = view.update(k, expanded[..., cfg.plain_dim :])
        y = view.attend(ops.concat(q, q_rotated, axis=-1), k, v, scale=self.scale)
        return self.out((y if self.kv_up is not None else _by_head(y, self.v_up)).reshape(*x.shape[:-1], -1))

    def queries(self, x: Tensor, batch: Batch) -> Tensor:
        """Queries before RoPE, (n, heads, head_dim)."""
        q = self.q or self.low_rank_q
        assert q is not None  # q_rank decides which of the two exists
        queries = q(x).reshape(*x.shape[:-1], self.config.n_heads[self.layer], self.config.head_dim)
        return queries if self.temperature is None else queries * self.temperature.factors(batch.positions)

    def _rotate(self, x: Tensor, batch: Batch) -> Tensor:
        return x if self.rope is None else ops.rope(x, batch.positions, self.rope_factors, config=self.rope)


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply (n, heads, in) with one matrix for each head, (heads, out, in), to (n, heads, out)."""
    return x.permute(1, 0, 2).matmul(weight, transpose=True).permute(1, 0, 2)
