"""DeepSeek-V2 and V3 (arXiv:2405.04434, arXiv:2412.19437): multi-head latent attention, and a mixture of experts.

The cache stores a latent instead of keys and values. The matrices that would expand it to keys and values are applied
to the queries and to the result instead. So all heads share one key of ``kv_rank + rope.dim`` elements, and the first
``kv_rank`` of these are also the value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import AttentionSpec, AttentionView
from hotshoe.nn import (
    ExpertLayersConfig,
    GatedMLP,
    Linear,
    MixtureOfExperts,
    Module,
    RMSNorm,
    dense_or_experts,
    derived,
    key,
    layers,
    rope_key,
    submodule,
    tensor,
)
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE

_LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"


def _magnitude(arch: Metadata, factor: float) -> float:
    """YaRN's magnitude of the rotated elements. Files with a log multiplier scale the scores instead: Config.scale."""
    return 1.0 if arch.get(_LOG_MULTIPLIER, 0.0) else nn.yarn_magnitude(factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertLayersConfig):
    head_dim: int = key("attention.key_length_mla", minimum=1)  # including the elements that RoPE rotates
    v_dim: int = key("attention.value_length_mla", minimum=1)
    rope: RoPE = rope_key(interleaved=True, magnitude=_magnitude)
    window: int = derived(lambda *_: 0)
    q_rank: int = key("attention.q_lora_rank", default=0)  # 0: one matrix computes the queries
    kv_rank: int = key("attention.kv_lora_rank", minimum=1)
    yarn_log_multiplier: float = key(_LOG_MULTIPLIER, default=0.0)
    n_experts: int = key("expert_count", default=0)
    n_experts_used: int = key("expert_used_count", default=0)
    normalize_experts: bool = key("expert_weights_norm", default=False)

    @property
    def plain_dim(self) -> int:
        """Elements of a head's query and key that RoPE does not rotate."""
        return self.head_dim - self.rope.dim

    @property
    def scale(self) -> float:
        """The factor of the scores. It includes YaRN's temperature; other models apply that to the rotated elements."""
        temperature = 1.0 + self.yarn_log_multiplier * math.log(max(1.0, 1.0 / self.rope.scale))
        return temperature * temperature / math.sqrt(self.head_dim)


class LowRankQueries(Module):
    down: Linear = submodule("attn_q_a", shape=lambda c, i: (c.q_rank, c.dim))
    norm: RMSNorm = submodule("attn_q_a_norm", shape=lambda c, i: (c.q_rank,))
    up: Linear = submodule("attn_q_b", shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.q_rank))

    def __call__(self, x: Tensor) -> Tensor:
        return self.up(self.norm(self.down(x)))


class Attention(Module):
    config: Config
    q: Linear | None = submodule(
        "attn_q", when=lambda c, i: not c.q_rank, shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.dim)
    )
    low_rank_q: LowRankQueries | None = submodule(when=lambda c, i: c.q_rank > 0)
    kv_down: Linear = submodule("attn_kv_a_mqa", shape=lambda c, i: (c.kv_rank + c.rope.dim, c.dim))
    kv_norm: RMSNorm = submodule("attn_kv_a_norm", shape=lambda c, i: (c.kv_rank,))
    k_up: Tensor = tensor("attn_k_b.weight", use="matmul", shape=lambda c, i: (c.n_heads[i], c.kv_rank, c.plain_dim))
    v_up: Tensor = tensor("attn_v_b.weight", use="matmul", shape=lambda c, i: (c.n_heads[i], c.v_dim, c.kv_rank))
    out: Linear = submodule("attn_output", shape=lambda c, i: (c.dim, c.n_heads[i] * c.v_dim))

    def cache_spec(self) -> AttentionSpec:
        cfg = self.config
        return AttentionSpec(1, cfg.kv_rank + cfg.rope.dim, v_in_k=cfg.kv_rank, rope=cfg.rope, rope_start=cfg.kv_rank)

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        cfg = self.config
        q = self._queries(x)  # (n, heads, head_dim)
        q_rotated = self.rotate(q[..., cfg.plain_dim :], batch)
        latent = _by_head(q[..., : cfg.plain_dim], self.k_up)  # (n, heads, kv_rank)
        kv = self.kv_down(x)[:, None]  # (n, 1, kv_rank + rope.dim)
        k_rotated = self.rotate(kv[..., cfg.kv_rank :], batch)
        k = ops.concat(self.kv_norm(kv[..., : cfg.kv_rank]), k_rotated, axis=-1)
        k, v = view.update(k)
        y = ops.attention(ops.concat(latent, q_rotated, axis=-1), k, v, view.mask, scale=cfg.scale)
        return self.out(_by_head(y, self.v_up).reshape(*x.shape[:-1], -1))

    def rotate(self, x: Tensor, batch: Batch) -> Tensor:
        """Apply RoPE to the elements that know positions: (n, heads, rope.dim) to the same."""
        return ops.rope(x, batch.positions, config=self.config.rope)

    def _queries(self, x: Tensor) -> Tensor:
        q = self.q or self.low_rank_q
        assert q is not None  # q_rank decides which of the two exists
        return q(x).reshape(*x.shape[:-1], self.config.n_heads[self.layer], self.config.head_dim)


def _by_head(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply (n, heads, in) with one matrix for each head, (heads, out, in), to (n, heads, out)."""
    return x.permute(1, 0, 2).matmul(weight, transpose=True).permute(1, 0, 2)


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")

    def unused_keys(self) -> dict[str, str]:
        return dict.fromkeys(("attention.key_length", "attention.value_length"), "they follow from kv_rank")


family = Family(Model)
