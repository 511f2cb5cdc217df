"""Gemma 4, the text model (Google 2026): heads of two sizes, keys that other layers read, vectors of layers, experts.

Layers with a window and full layers differ in the size of their heads, and in RoPE. The last layers of the small models
read the keys and values of earlier ones. Values may be keys before their norm. With experts, a block also has a dense
MLP, and all norms of that half are inside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import AttentionSpec, AttentionView
from hotshoe.models.gemma import MLP, ReadingDecoder
from hotshoe.nn import Linear, Module, RMSNorm, key, layers, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe.nn.per_layer import PerLayerEmbeddings, PerLayerInput
from hotshoe_core import Tensor, ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(nn.ExpertLayersConfig):
    window: int = key("attention.sliding_window", minimum=1)
    pattern: nn.LayerPattern = nn.pattern_key(6, base=10000.0, unscaled=True)
    windowed_head_dim: int = key("attention.key_length_swa", default=lambda c: c.head_dim, minimum=1)
    windowed_v_dim: int = key("attention.value_length_swa", default=lambda c: c.v_dim, minimum=1)
    n_readers: int = key(  # the last layers, which read others' keys
        "attention.shared_kv_layers", default=0, maximum=lambda c: c.n_layers - 1
    )
    per_layer_dim: int = key("embedding_length_per_layer_input", default=0)
    expert_dim: int = key("expert_feed_forward_length", default=0)
    softcap: float = key("final_logit_softcapping", default=30.0)

    @property
    def head_dims(self) -> tuple[int, ...]:
        return tuple(self.windowed_head_dim if w else self.head_dim for w in self.pattern.windowed)

    @property
    def v_dims(self) -> tuple[int, ...]:
        return tuple(self.windowed_v_dim if w else self.v_dim for w in self.pattern.windowed)

    def source_of(self, layer: int) -> int | None:
        """The layer whose keys and values a layer reads; None if it has its own."""
        return self.pattern.source_of(layer, self.n_layers - self.n_readers)


class _Heads(nn.Attention):
    config: Config
    q_norm: RMSNorm = submodule("attn_q_norm", shape=lambda c, i: (c.head_dims[i],))
    # full layers rotate only some elements: the frequencies of the others are divided by a huge number
    freqs: Tensor | None = tensor(
        "rope_freqs.weight", use="rope", of_model=True, when=lambda c, i: not c.pattern.windowed[i],
        shape=lambda c, i: (c.rope.dim // 2,),
    )  # fmt: skip
    scale = 1.0

    @property
    def rope_factors(self) -> Tensor | None:
        return self.freqs


class Attention(_Heads):
    k_norm: RMSNorm = submodule("attn_k_norm", shape=lambda c, i: (c.head_dims[i],))
    v_norm: nn.UnweightedRMSNorm = submodule()
    k_and_v: Linear | None = submodule(
        "attn_k", instead_of=("k", "v"), shape=lambda c, i: (c.n_kv_heads[i] * c.head_dims[i], c.dim)
    )

    def cache_spec(self) -> AttentionSpec:
        # pictures are bidirectional in layers with a window only
        return replace(super().cache_spec(), spans="windowed" if self.window else "causal")

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if self.k_and_v is None:
            return super().project(x)
        q, k = (y.reshape(*x.shape[:-1], -1, self.head_dim) for y in (self.q(x), self.k_and_v(x)))
        return q, k, k


class ReadingAttention(_Heads, nn.ReadingAttention):
    pass


class Router(Linear):
    scale = None  # a tensor of this name scales the input, not the result


class Experts(nn.MixtureOfExperts):
    """Experts with norms of their own. The router reads the hidden states before all norms."""

    activation = "gelu_tanh"
    router: Router = submodule("ffn_gate_inp", shape=lambda c, i: (c.n_experts, c.dim))
    router_scale: Tensor = tensor("ffn_gate_inp.scale", use="mul", shape=lambda c, i: (c.dim,))
    norm: RMSNorm = submodule("pre_ffw_norm_2", shape=lambda c, i: (c.dim,))
    post_norm: RMSNorm = submodule("post_ffw_norm_2", shape=lambda c, i: (c.dim,))
    shared = None

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normed = ops.rms_norm(x, eps=self.config.norm_eps) * (1 / math.sqrt(self.config.dim))
        return super().route(normed * self.router_scale)

    def combine(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return self.post_norm(super().combine(self.norm(x), weights, chosen))


class DenseAndExperts(Module):
    """A dense MLP and experts side by side: (n, dim) to (n, dim)."""

    norm: RMSNorm = submodule("ffn_norm", shape=lambda c, i: (c.dim,))
    dense: MLP = submodule()
    post_norm: RMSNorm = submodule("post_ffw_norm_1", shape=lambda c, i: (c.dim,))
    experts: Experts = submodule()

    def __call__(self, x: Tensor) -> Tensor:
        return self.post_norm(self.dense(self.norm(x))) + self.experts(x)


class Block(nn.SandwichBlock):
    attention: Attention | ReadingAttention = submodule(
        choose=lambda c, i: Attention if c.source_of(i) is None else ReadingAttention
    )
    mlp_norm: RMSNorm | None = submodule(
        "ffn_norm", when=lambda c, i: not c.has_experts(i), shape=lambda c, i: (c.dim,)
    )
    mlp: MLP | DenseAndExperts = submodule(choose=lambda c, i: DenseAndExperts if c.has_experts(i) else MLP)
    extra: PerLayerInput | None = submodule(when=lambda c, i: c.per_layer_dim > 0)
    factor: Tensor | None = tensor("layer_output_scale.weight", use="mul", optional=True, shape=lambda c, i: (1,))

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView, vector: Tensor | None = None) -> Tensor:
        x = super().__call__(x, batch, view)
        if self.extra is not None and vector is not None:
            x = x + self.extra(x, vector)
        return x if self.factor is None else x * self.factor


class Model(ReadingDecoder):
    config: Config
    per_layer: PerLayerEmbeddings | None = submodule(when=lambda c, i: c.per_layer_dim > 0)
    blocks: list[Block] = layers("blk")

    def run(self, x: Tensor, batch: Batch, views: list[Any]) -> Tensor:
        if self.per_layer is None:
            return super().run(x, batch, views)
        return self.run_with(self.per_layer(x, batch), x, batch, views)


family = Family(Model)
