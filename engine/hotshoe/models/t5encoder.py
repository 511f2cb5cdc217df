"""T5's encoder (Raffel et al. 2019, arXiv:1910.10683): scores depend on distances in buckets, and are not scaled."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import UncachedView
from hotshoe.nn import Linear, Module, RMSNorm, TransformerConfig, derived, key, layers, submodule, tensor
from hotshoe_core import Tensor, constant, ops, scope

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

_FARTHEST = 128  # distances from here on have one bucket; files do not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TransformerConfig):
    window: int = derived(lambda *_: 0)
    n_buckets: int = key("attention.relative_buckets_count", minimum=4, maximum=4 * _FARTHEST - 1)


class DistanceScores(Module):
    """Add what depends on distances to a mask: (b, 1, n or 1, n) to (b, heads, n, n)."""

    weight: Tensor = tensor("attn_rel_b.weight", use="take", shape=lambda c, i: (c.n_buckets, c.n_heads[0]))

    def __call__(self, mask: Tensor) -> Tensor:
        return mask + self.weight.take(constant(buckets(mask.shape[-1], self.config.n_buckets))).permute(2, 0, 1)


class Attention(nn.UnrotatedAttention):
    scale = 1.0
    out: Linear = submodule("attn_o", shape=lambda c, i: (c.dim, c.n_heads[i] * c.v_dims[i]))


def buckets(n: int, n_buckets: int) -> np.ndarray[Any, Any]:
    """The bucket of each token (column) for each token (row): int32 (n, n). Source: the T5 paper, as in its code.

    Half of the buckets are for tokens before, half for those after. Half of these are for one distance each, the others
    grow with the logarithm.
    """
    half = n_buckets // 2
    exact = half // 2
    relative = np.arange(n)[None] - np.arange(n)[:, None]
    far = np.maximum(np.abs(relative), exact).astype(np.float32) / np.float32(exact)
    steps = np.log(far) / np.float32(math.log(_FARTHEST / exact)) * np.float32(half - exact)
    near = np.where(np.abs(relative) < exact, np.abs(relative), np.minimum(exact + steps.astype(np.int64), half - 1))
    found: np.ndarray[Any, Any] = near + np.where(relative > 0, half, 0)
    return found.astype(np.int32)


class FeedForward(Module):
    """Version 1.1 has a gate, and GELU in the place of ReLU."""

    gate: Linear | None = submodule("ffn_gate", optional=True, shape=lambda c, i: (c.mlp_dim[i], c.dim))
    up: Linear = submodule("ffn_up", shape=lambda c, i: (c.mlp_dim[i], c.dim))
    down: Linear = submodule("ffn_down", shape=lambda c, i: (c.dim, c.mlp_dim[i]))

    def __call__(self, x: Tensor) -> Tensor:
        up = self.up(x)
        return self.down(up.relu() if self.gate is None else ops.geglu(self.gate(x), up, approximate="tanh"))


class Block(nn.TransformerBlock):
    distances: DistanceScores | None = submodule(when=lambda c, i: i == 0)
    attention: Attention = submodule()
    mlp: FeedForward = submodule()


class Model(nn.Encoder):
    config: Config
    token_types = None
    embedding_norm = None
    blocks: list[Block] = layers("enc.blk")
    norm: RMSNorm = submodule("enc.output_norm", shape=lambda c, i: (c.dim,))

    def run(self, x: Tensor, batch: Batch, views: list[Any]) -> Tensor:
        add_distances: Any = self.blocks[0].distances
        with scope("", 0):
            mask = add_distances(views[0].mask)  # once for all layers
        return super().run(x, batch, [UncachedView(mask, view.cell_positions) for view in views])

    def unused_tensors(self) -> dict[str, str]:
        return super().unused_tensors() | {"output.weight": "an encoder computes no logits"}


family = Family(Model)
