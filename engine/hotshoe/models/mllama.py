"""Llama 3.2 Vision (Meta 2024, arXiv:2407.21783), in Ollama's form: Llama 3, and layers that attend to pictures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import CrossSpec, CrossView
from hotshoe.models import llama
from hotshoe.nn import GatedMLP, Linear, Module, RMSNorm, derived, layers, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata

_LAYERS = "attention.cross_attention_layers"


def _cross_layers(metadata: Metadata, found: SimpleNamespace, _: Any) -> frozenset[int]:
    numbers = metadata.arch.require(_LAYERS, list)
    if not isinstance(numbers, Iterable) or not all(type(i) is int and 0 <= i < found.n_layers for i in numbers):
        raise metadata.arch.error(_LAYERS, f"expected numbers of layers, 0 to {found.n_layers - 1}")
    return frozenset(numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(llama.Config):
    cross_layers: frozenset[int] = derived(_cross_layers)
    """The layers that attend to pictures, and not to the text."""


class HeadNorm(RMSNorm):
    """The norm of queries and keys. Files have their elements in the order of llama's RoPE, which these layers do not
    compute, but the norm's weights in the order of transformers."""

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, eps=self.eps) * self.weight.reshape(2, -1).T.reshape(-1)


class CrossAttention(Module):
    """Attention to the rows of pictures, which have no positions."""

    q: Linear = submodule("cross_attn_q_proj", shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.dim))
    k: Linear = submodule("cross_attn_k_proj", shape=lambda c, i: (c.n_kv_heads[i] * c.head_dim, c.dim))
    v: Linear = submodule("cross_attn_v_proj", shape=lambda c, i: (c.n_kv_heads[i] * c.head_dim, c.dim))
    out: Linear = submodule("cross_attn_o_proj", shape=lambda c, i: (c.dim, c.n_heads[i] * c.head_dim))
    q_norm: HeadNorm = submodule("cross_attn_q_norm", shape=lambda c, i: (c.head_dim,))
    k_norm: HeadNorm = submodule("cross_attn_k_norm", shape=lambda c, i: (c.head_dim,))

    def cache_spec(self) -> CrossSpec:
        dim = self.config.head_dim
        return CrossSpec(self.config.n_kv_heads[self.layer], dim, dim)

    def store(self, rows: Tensor, view: CrossView) -> None:
        """rows: those of pictures, (m, dim)."""
        shape = (rows.shape[0], self.config.n_kv_heads[self.layer], -1)
        view.put(self.k_norm(self.k(rows).reshape(*shape)), self.v(rows).reshape(*shape))

    def __call__(self, x: Tensor, view: CrossView) -> Tensor:
        q = self.q_norm(self.q(x).reshape(x.shape[0], self.config.n_heads[self.layer], -1))
        y = ops.attention(q, *view.read(), view.mask, scale=self.config.head_dim**-0.5)
        return self.out(y.reshape(x.shape[0], -1))


class CrossBlock(nn.Block):
    """A block that attends to pictures. Rows that attend to none pass through it unchanged."""

    attention_norm: RMSNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    attention: CrossAttention = submodule()
    attention_gate: Tensor = tensor("cross_attn_attn_gate", use="tanh", shape=lambda c, i: (1,))
    mlp_norm: RMSNorm = submodule("ffn_norm", shape=lambda c, i: (c.dim,))
    mlp: GatedMLP = submodule()
    mlp_gate: Tensor = tensor("cross_attn_mlp_gate", use="tanh", shape=lambda c, i: (1,))

    def cache_spec(self) -> CrossSpec:
        return self.attention.cache_spec()

    def store(self, rows: Tensor, view: CrossView) -> None:
        self.attention.store(rows, view)

    def __call__(self, x: Tensor, batch: Batch, view: CrossView | None) -> Tensor:
        if view is None:  # no row of the graph attends to a picture
            return x
        x = x + self.attention(self.attention_norm(x), view) * (view.attends * self.attention_gate.tanh())
        return x + self.mlp(self.mlp_norm(x)) * (view.attends * self.mlp_gate.tanh())


class Model(nn.Decoder):
    config: Config
    blocks: list[nn.Block] = layers("blk", choose=lambda c, i: CrossBlock if i in c.cross_layers else llama.Block)


family = Family(Model)
