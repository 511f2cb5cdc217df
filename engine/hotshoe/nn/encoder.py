"""Encoder: the parts of an embedding model around its blocks; PostNormBlock: the block of BERT and its relatives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe.nn.basic import Embedding, LayerNorm, Norm
from hotshoe.nn.decoder import Backbone, Block, FeedForward, Mixer
from hotshoe.nn.module import submodule
from hotshoe.tasks import Task
from hotshoe_core import Tensor

if TYPE_CHECKING:
    from hotshoe.kvcache import LayerSpec
    from hotshoe.nn.batch import Batch

__all__ = ["Encoder", "PostNormBlock"]


class PostNormBlock(Block):
    """A block that normalises the sum after attention, and the sum after the MLP: (b, n, dim) to (b, n, dim)."""

    attention: Mixer
    attention_norm: LayerNorm = submodule("attn_output_norm", shape=lambda c, i: (c.dim,))
    mlp: FeedForward
    mlp_norm: LayerNorm = submodule("layer_output_norm", shape=lambda c, i: (c.dim,))

    def cache_spec(self) -> LayerSpec:
        return self.attention.cache_spec()

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        x = self.attention_norm(x + self.attention(x, batch, view))
        return self.mlp_norm(x + self.mlp(x))


class Encoder(Backbone):
    """A model that reads whole texts, in which each token sees all others: ids (b, n) to hidden states (b, n, dim).

    A subclass annotates ``config`` and declares ``blocks`` with its own classes. It sets ``token_types = None`` or
    ``norm`` if it has no types of tokens, or a norm after the last block.
    """

    token_types: Embedding | None = submodule("token_types", optional=True, shape=lambda c, i: (None, c.dim))
    embedding_norm: LayerNorm | None = submodule("token_embd_norm", shape=lambda c, i: (c.dim,))
    norm: Norm | None = None
    task = Task.EMBEDDING
    compute_bound = True
