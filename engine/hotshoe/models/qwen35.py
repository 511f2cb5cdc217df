"""Qwen 3.5, 3.6 and 3.8: three of four layers are gated delta nets, the others attention with an output gate.

Source: Gated Delta Networks (Yang et al. 2024, arXiv:2412.06464); Gated Attention (Qiu et al. 2025, arXiv:2505.06708).
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import AttentionView
from hotshoe.nn import GatedMLP, Linear, RMSNorm, TextConfig, key, layers, rope_key, submodule
from hotshoe.nn.batch import Batch
from hotshoe.nn.mixers import GatedDelta, StateSpace, recurrent_key, ssm_key
from hotshoe_core import Tensor, ops
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(sections="interleaved")
    ssm: StateSpace = ssm_key()
    interval: int = key("full_attention_interval", default=4, minimum=1)
    recurrent: tuple[bool, ...] = recurrent_key()


class Attention(nn.NormedAttention):
    """The rows of ``attn_q`` are, for each head, a query and then the gate of its output."""

    q: Linear = submodule("attn_q", shape=lambda c, i: (2 * c.n_heads[i] * c.head_dim, c.dim))

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        def heads(y: Tensor, n: int) -> Tensor:
            return y.reshape(*x.shape[:-1], n, -1)

        q, gate = heads(self.q(x), self.n_heads).chunk(2)
        q, k = self.q_norm(q), self.k_norm(heads(self.k(x), self.n_kv_heads))
        q, k = (ops.rope(y, batch.positions, config=self.rope) for y in (q, k))
        k, v = view.update(k, heads(self.v(x), self.n_kv_heads))
        y = ops.attention(q, k, v, view.mask, scale=self.scale)
        return self.out((y * gate.sigmoid()).reshape(*x.shape[:-1], -1))


class DeltaNet(GatedDelta):
    tiled = True


class Block(nn.PreNormBlock):
    attention: Attention | DeltaNet = submodule(choose=lambda c, i: DeltaNet if c.recurrent[i] else Attention)
    mlp_norm: RMSNorm = submodule("post_attention_norm", shape=lambda c, i: (c.dim,))
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
