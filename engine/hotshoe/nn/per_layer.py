"""PerLayerEmbeddings: a small vector of each token for each layer (Gemma 3n, Gemma 4)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hotshoe.nn.basic import Embedding, Linear, RMSNorm
from hotshoe.nn.mlp import gated
from hotshoe.nn.module import Module, submodule
from hotshoe_core import Tensor

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

__all__ = ["PerLayerEmbeddings", "PerLayerInput"]


class PerLayerEmbeddings(Module):
    """The vectors of all layers, from the token and from its embedding. The config has ``per_layer_dim``."""

    table: Embedding = submodule("per_layer_token_embd", shape=lambda c, i: (None, c.n_layers * c.per_layer_dim))
    projection: Linear = submodule("per_layer_model_proj", shape=lambda c, i: (c.n_layers * c.per_layer_dim, c.dim))
    norm: RMSNorm = submodule("per_layer_proj_norm", shape=lambda c, i: (c.per_layer_dim,))

    def __call__(self, x: Tensor, batch: Batch) -> Tensor:
        """Embeddings (n, dim) to one vector for each layer, (n, n_layers, per_layer_dim)."""
        cfg = self.config
        self.table.require_rows(cfg.n_vocab, "the vocabulary has that many tokens")
        shape = (*x.shape[:-1], cfg.n_layers, cfg.per_layer_dim)
        projected = self.norm((self.projection(x) * (1 / math.sqrt(cfg.dim))).reshape(*shape))
        looked_up = (self.table(batch.tokens) * math.sqrt(cfg.per_layer_dim)).reshape(*shape)
        return (projected + looked_up) * math.sqrt(0.5)


class PerLayerInput(Module):
    """What a layer makes of its vector: (n, dim) and (n, per_layer_dim) to (n, dim)."""

    gate: Linear = submodule("inp_gate", shape=lambda c, i: (c.per_layer_dim, c.dim))
    projection: Linear = submodule("proj", shape=lambda c, i: (c.dim, c.per_layer_dim))
    norm: RMSNorm = submodule("post_norm", shape=lambda c, i: (c.dim,))

    def __call__(self, x: Tensor, vector: Tensor) -> Tensor:
        return self.norm(self.projection(gated("gelu_tanh", self.gate(x), vector)))
