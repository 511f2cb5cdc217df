"""Qwen 3.5, 3.6 and 3.8: three of four layers are gated delta nets, the others attention with an output gate.

Source: Gated Delta Networks (Yang et al. 2024, arXiv:2412.06464); Gated Attention (Qiu et al. 2025, arXiv:2505.06708).
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import AttentionView
from hotshoe.nn import GatedMLP, Linear, RMSNorm, TextConfig, key, layers, nextn_layers, rope_key, submodule
from hotshoe.nn.batch import Batch
from hotshoe.nn.mixers import GatedDelta, StateSpace, recurrent_key, ssm_key
from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(sections="interleaved")
    ssm: StateSpace = ssm_key()
    interval: int = key("full_attention_interval", default=4, minimum=1)
    recurrent: tuple[bool, ...] = recurrent_key()


class Attention(nn.NormedAttention):
    """The rows of ``attn_q`` are, for each head, a query and then the gate of its result."""

    q: Linear = submodule("attn_q", shape=lambda c, i: (2 * c.n_heads[i] * c.head_dim, c.dim))
    qkv: Linear | None = submodule(
        "attn_qkv",
        instead_of=("q", "k", "v"),
        shape=lambda c, i: (2 * (c.n_heads[i] + c.n_kv_heads[i]) * c.head_dim, c.dim),
    )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.qkv is None:
            return super().project(x)
        q, kv, dim = 2 * self.n_heads, self.n_kv_heads, self.head_dim
        whole = self.qkv(x).reshape(*x.shape[:-1], q + 2 * kv, dim)
        queries = whole[..., :q, :].reshape(*x.shape[:-1], self.n_heads, 2 * dim)
        return queries, whole[..., q : q + kv, :], whole[..., q + kv :, :]

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        q, k, v = self.project(x)
        q, gate = q.chunk(2)  # each (n, heads, head_dim)
        y = self.attend(q, k, v, batch, view)
        return self.out((y * gate.sigmoid()).reshape(*x.shape[:-1], -1))


class DeltaNet(GatedDelta):
    tiled = True


class HybridBlock(nn.TransformerBlock):
    attention: Attention | DeltaNet = submodule(choose=lambda c, i: DeltaNet if c.recurrent[i] else Attention)
    mlp_norm: RMSNorm = submodule("post_attention_norm", shape=lambda c, i: (c.dim,))


class Block(HybridBlock):
    mlp: GatedMLP = submodule()


class DraftingBlock(HybridBlock):
    attention: Attention = submodule()
    mlp_norm: RMSNorm | None = submodule(  # type: ignore[assignment]
        "post_attention_norm", optional=True, shape=lambda c, i: (c.dim,)
    )
    mlp: GatedMLP | None = submodule(optional=True)  # the 4B and the 9B have none


class NextN(nn.NextN):
    block: DraftingBlock = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")
    nextn: list[NextN] = nextn_layers("blk")


family = Family(Model)
