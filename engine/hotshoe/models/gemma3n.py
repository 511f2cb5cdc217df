"""Gemma 3n, text only (Google 2025): several streams of hidden states, of which each layer computes one.

AltUp (Baykal et al. 2023, arXiv:2301.13310) predicts all streams from the last layer's, and corrects them by the one
that was computed. Laurel (Menghani et al. 2024, arXiv:2411.07501) adds a low-rank product to attention. The first MLPs
keep only the largest gates. Vectors for each layer and keys that other layers read are as in Gemma 4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import AttentionView
from hotshoe.models import gemma
from hotshoe.nn import LayerPattern, Linear, Module, RMSNorm, key, layers, pattern_key, rope_key, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe.nn.per_layer import PerLayerEmbeddings, PerLayerInput
from hotshoe_core import Tensor, ops
from hotshoe_core.ops import RoPE

_LAYERS_WITH_KEYS = 20  # of the published models, whose first files do not say so
_HALF = math.sqrt(0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(nn.TextConfig):
    window: int = key("attention.sliding_window", minimum=1)
    rope: RoPE = rope_key(base=1e6)
    pattern: LayerPattern = pattern_key(5, base=10000.0, unscaled=True)
    n_readers: int = key(
        "attention.shared_kv_layers",
        default=lambda c: max(0, c.n_layers - _LAYERS_WITH_KEYS),
        maximum=lambda c: c.n_layers - 1,
    )
    per_layer_dim: int = key("embedding_length_per_layer_input", default=256, minimum=1)
    n_streams: int = key("altup.num_inputs", default=4, minimum=2)
    # the stream that layers compute
    active: int = key("altup.active_idx", default=0, maximum=lambda c: c.n_streams - 1)
    # gates are cut off this many standard deviations above their mean; -inf: not at all
    cutoff: tuple[float, ...] = key("activation_sparsity_scale", per_layer=True)
    softcap: float = key("final_logit_softcapping", default=30.0)

    def source_of(self, layer: int) -> int | None:
        """The layer whose keys and values a layer reads; None if it has its own."""
        return self.pattern.source_of(layer, self.n_layers - self.n_readers)


class Attention(nn.NormedAttention):
    v_norm: nn.UnweightedRMSNorm = submodule()
    scale = 1.0


class ReadingAttention(nn.ReadingAttention):
    q_norm: RMSNorm = submodule("attn_q_norm", shape=lambda c, i: (c.head_dims[i],))
    scale = 1.0


class MLP(gemma.MLP):
    config: Config

    def product(self, gate: Tensor, up: Tensor) -> Tensor:
        cutoff = self.config.cutoff[self.layer]
        if cutoff != -math.inf:
            limit = gate.mean(keepdims=True) + gate.stddev(keepdims=True) * cutoff
            gate = (gate - limit).relu()
        return super().product(gate, up)


class AltUp(Module):
    """The map between the streams before and after a layer: (n, n_streams, dim)."""

    config: Config
    router_norm: RMSNorm = submodule("altup_router_norm", shape=lambda c, i: (c.dim,))
    router: Linear = submodule("altup_router", shape=lambda c, i: (c.n_streams, c.dim))
    to_predict: Linear = submodule("altup_predict_coef", shape=lambda c, i: (c.n_streams**2, c.n_streams))
    to_correct: Linear = submodule("altup_correct_coef", shape=lambda c, i: (c.n_streams, c.n_streams))

    def predict(self, streams: Tensor) -> Tensor:
        n = self.config.n_streams
        coefficients = self.to_predict(self._modes(streams[:, self.config.active])).reshape(-1, n, n)
        return streams + coefficients @ streams

    def correct(self, streams: Tensor, computed: Tensor) -> Tensor:
        """The streams, corrected by what the layer computed of the active one, (n, dim)."""
        coefficients = self.to_correct(self._modes(computed)) + 1.0  # (n, n_streams)
        change = computed - streams[:, self.config.active]
        return streams + coefficients[..., None] * change[:, None]

    def _modes(self, x: Tensor) -> Tensor:
        return self.router(self.router_norm(x) * (1 / self.config.dim)).tanh()


class Block(nn.SandwichBlock):
    """A block whose inputs and outputs are all streams: (n, n_streams, dim)."""

    attention: Attention | ReadingAttention = submodule(
        choose=lambda c, i: Attention if c.source_of(i) is None else ReadingAttention
    )
    mlp: MLP = submodule()
    altup: AltUp = submodule()
    correct_scale: Tensor = tensor("altup_correct_scale.weight", use="mul", shape=lambda c, i: (c.dim,))
    laurel_in: Linear = submodule("laurel_l", shape=lambda c, i: (None, c.dim))
    laurel_out: Linear = submodule("laurel_r", shape=lambda c, i: (c.dim, None))
    laurel_norm: RMSNorm = submodule("laurel_post_norm", shape=lambda c, i: (c.dim,))
    extra: PerLayerInput = submodule()

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView, vector: Tensor | None = None) -> Tensor:
        assert vector is not None and self.attention_norm and self.post_attention_norm  # noqa: PT018
        assert self.mlp_norm and self.post_mlp_norm  # noqa: PT018
        active = self.config.active
        predicted = self.altup.predict(x)
        normed = self.attention_norm(predicted[:, active])
        laurel = normed + self.laurel_norm(self.laurel_out(self.laurel_in(normed)))
        attended = predicted[:, active] + self.post_attention_norm(self.attention(normed, batch, view))
        y = (attended + laurel) * _HALF
        y = y + self.post_mlp_norm(self.mlp(self.mlp_norm(y)))
        corrected = self.altup.correct(predicted, y)
        extra = self.extra(corrected[:, active] * self.correct_scale, vector)
        return ops.concat(corrected[:, :1], corrected[:, 1:] + extra[:, None], axis=1)


class Model(gemma.ReadingDecoder):
    config: Config
    per_layer: PerLayerEmbeddings = submodule()
    expand: Tensor = tensor("altup_proj.weight", use="matmul", shape=lambda c, i: (c.n_streams - 1, c.dim, c.dim))
    blocks: list[Block] = layers("blk")
    merge: Tensor = tensor("altup_unembd_proj.weight", use="matmul", shape=lambda c, i: (c.n_streams - 1, c.dim, c.dim))

    def run(self, x: Tensor, batch: Batch, views: list[Any]) -> Tensor:
        vectors = self.per_layer(x, batch)
        others = x[None].expand(self.config.n_streams - 1, *x.shape).matmul(self.expand, transpose=True)
        streams = ops.concat(x[:, None], _as_long_as(x, others), axis=1)  # (n, n_streams, dim)
        streams = self.run_with(vectors, streams, batch, views)
        first, others = streams[:, 0], streams[:, 1:].permute(1, 0, 2).matmul(self.merge, transpose=True)
        return ops.concat(first[:, None], _as_long_as(first, others), axis=1).mean(1)


def _as_long_as(x: Tensor, others: Tensor) -> Tensor:
    """Scale (streams, n, dim) to the length of (n, dim): (n, streams, dim)."""
    length = x.sqr().mean(keepdims=True).sqrt()
    scaled = others * (length / others.sqr().mean(keepdims=True).clamp(min=1e-5).sqrt())
    return scaled.permute(1, 0, 2)


family = Family(Model)
