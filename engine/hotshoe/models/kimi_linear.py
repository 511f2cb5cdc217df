"""Kimi Linear (Kimi Team 2025, arXiv:2510.26692): delta attention with a decay for each element, and latent attention.

Layers without key/value heads have Kimi Delta Attention; the others have the latent attention of DeepSeek-V2 without
RoPE, so no layer knows positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import RecurrentSpec, RecurrentView
from hotshoe.nn import Linear, Module, RMSNorm, gating_key, key, layers, rope_key, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe.nn.experts import Gating
from hotshoe.nn.latent import LatentAttention, LatentConfig
from hotshoe_core import Tensor, ops
from hotshoe_core.ops import RoPE

_EPS = 1e-6  # of the length of queries and keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LatentConfig):
    rope: RoPE = rope_key()  # only its length: no element is rotated
    delta_dim: int = key("kda.head_dim", minimum=1)  # of queries, keys and values
    kernel_size: int = key("ssm.conv_kernel", minimum=2)
    gating: Gating = gating_key("sigmoid")


def _conv(letter: str) -> Any:
    return tensor(
        f"ssm_conv1d_{letter}.weight",
        use="ssm_conv",
        shape=lambda c, i: (1, c.n_heads[i] * c.delta_dim, 1, c.kernel_size),
    )


def _heads(name: str) -> Any:
    return submodule(name, shape=lambda c, i: (c.n_heads[i] * c.delta_dim, c.dim))


class DeltaAttention(Module):
    """Kimi Delta Attention: (n, dim) to (n, dim)."""

    config: Config
    qkv: Linear | None = submodule(
        "attn_qkv", instead_of=("q", "k", "v"), shape=lambda c, i: (3 * c.n_heads[i] * c.delta_dim, c.dim)
    )
    q: Linear = _heads("attn_q")
    k: Linear = _heads("attn_k")
    v: Linear = _heads("attn_v")
    q_conv: Tensor = _conv("q")
    k_conv: Tensor = _conv("k")
    v_conv: Tensor = _conv("v")
    beta: Linear = submodule("ssm_beta", shape=lambda c, i: (c.n_heads[i], c.dim))
    decay_down: Linear = submodule("ssm_f_a", shape=lambda c, i: (c.delta_dim, c.dim))
    decay_up: Linear = submodule("ssm_f_b", shape=lambda c, i: (c.n_heads[i] * c.delta_dim, c.delta_dim))
    dt_bias: Tensor = tensor("ssm_dt.bias", use="add", shape=lambda c, i: (c.n_heads[i] * c.delta_dim,))
    rates: Tensor = tensor("ssm_a", use="mul", shape=lambda c, i: (1, 1, c.n_heads[i], 1))
    gate_down: Linear = submodule("ssm_g_a", shape=lambda c, i: (c.delta_dim, c.dim))
    gate_up: Linear = submodule("ssm_g_b", shape=lambda c, i: (c.n_heads[i] * c.delta_dim, c.delta_dim))
    norm: RMSNorm = submodule("ssm_norm", shape=lambda c, i: (c.delta_dim,))
    out: Linear = submodule("attn_output", shape=lambda c, i: (c.dim, c.n_heads[i] * c.delta_dim))

    def cache_spec(self) -> RecurrentSpec:
        heads, size = self.config.n_heads[self.layer], self.config.delta_dim
        conv = (self.config.kernel_size - 1, heads * size)
        return RecurrentSpec({"q": conv, "k": conv, "v": conv, "delta": (heads, size, size)})

    def __call__(self, x: Tensor, batch: Batch, view: RecurrentView) -> Tensor:
        heads, size = self.config.n_heads[self.layer], self.config.delta_dim
        projected = [self.q(x), self.k(x), self.v(x)] if self.qkv is None else self.qkv(x).chunk(3)
        mixed: list[Tensor] = []
        for name, y, conv in zip(
            "qkv", map(view.split, projected), (self.q_conv, self.k_conv, self.v_conv), strict=True
        ):
            y = ops.ssm_conv(y, view.roll(name, y), conv.reshape(y.shape[-1], -1)).silu()
            mixed.append(y.reshape(*y.shape[:2], heads, size))  # (b, t, heads, delta_dim)
        # each head's vector gets length 1: x / √(x·x + ε)
        q, k = (ops.rms_norm(y, eps=_EPS / size) * size**-0.5 for y in mixed[:2])
        g = (self.decay_up(self.decay_down(x)) + self.dt_bias).softplus()
        g = view.split(g).reshape(*k.shape) * self.rates
        beta = view.split(self.beta(x)).sigmoid()
        y, state = ops.gated_delta_rule(q, k, mixed[2], g, beta, view.read("delta"))
        view.write("delta", state)
        gate = self.gate_up(self.gate_down(x)).sigmoid()
        return self.out(self.norm(view.merge(y)).reshape(*gate.shape) * gate)


class Attention(LatentAttention):
    rope = None


class Block(nn.ExpertBlock):
    attention: Attention | DeltaAttention = submodule(
        choose=lambda c, i: Attention if c.n_kv_heads[i] else DeltaAttention
    )


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")

    def unused_keys(self) -> dict[str, str]:
        return dict.fromkeys(("attention.key_length", "attention.value_length"), "they follow from kv_rank")


family = Family(Model)
