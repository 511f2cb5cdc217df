"""EmbeddingGemma (Google 2025, arXiv:2509.20354): Gemma 3 as an encoder, and up to two matrices after pooling."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import gemma3
from hotshoe.nn import Linear, key, layers, submodule
from hotshoe.tasks import Task
from hotshoe_core import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(gemma3.Config):
    dense_2_in: int = key("dense_2_feat_in", default=0)
    dense_2_out: int = key("dense_2_feat_out", default=0)
    dense_3_in: int = key("dense_3_feat_in", default=0)
    dense_3_out: int = key("dense_3_feat_out", default=0)


class Attention(gemma3.Attention):
    both_sides = True


class Block(gemma3.Block):
    attention: Attention = submodule()


class Model(nn.Backbone):
    config: Config
    blocks: list[Block] = layers("blk")
    dense_2: Linear | None = submodule("dense_2", optional=True, shape=lambda c, i: (c.dense_2_out, c.dense_2_in))
    dense_3: Linear | None = submodule("dense_3", optional=True, shape=lambda c, i: (c.dense_3_out, c.dense_3_in))
    task = Task.EMBEDDING
    compute_bound = True

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.config.dim)

    def project(self, pooled: Tensor) -> Tensor:
        """The vectors of texts from their pooled states: (b, dim) to (b, dim)."""
        for matrix in (self.dense_2, self.dense_3):
            pooled = pooled if matrix is None else matrix(pooled)
        return pooled


family = Family(Model)
