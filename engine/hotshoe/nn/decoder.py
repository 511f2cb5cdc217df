"""Backbone and Decoder: the parts of a text model around its blocks; PreNormBlock: the most common block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe.kvcache import LayerSpec
from hotshoe.nn.basic import Embedding, Linear, RMSNorm
from hotshoe.nn.module import Module, layers, submodule
from hotshoe_core import Tensor, scope

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

__all__ = ["Backbone", "Block", "Decoder", "PreNormBlock"]


class Block(Module):
    """Base class of layers. ``block(x, batch, view)`` returns the next hidden states."""

    def cache_spec(self) -> LayerSpec:
        """What the cache stores for this layer: an AttentionSpec, a RecurrentSpec, or None."""
        raise NotImplementedError

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        raise NotImplementedError


class Mixer(Protocol):
    """The half of a block that mixes tokens: attention, or a replacement such as a convolution."""

    def cache_spec(self) -> LayerSpec:
        """What the cache stores for this layer."""

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        """(n, dim) to (n, dim)."""


class FeedForward(Protocol):
    """The half of a block that computes each token separately: an MLP or a mixture of experts."""

    def __call__(self, x: Tensor) -> Tensor:
        """(n, dim) to (n, dim)."""


class PreNormBlock(Block):
    """A block with a norm before attention and a norm before the MLP, as in Llama and most models since.

        class Block(nn.PreNormBlock):
            attention: Attention = submodule()
            mlp: GatedMLP = submodule()

    A subclass declares ``attention`` and ``mlp`` with its own classes. (n, dim) to (n, dim).
    """

    attention_norm: RMSNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    attention: Mixer
    mlp_norm: RMSNorm = submodule("ffn_norm", shape=lambda c, i: (c.dim,))
    mlp: FeedForward

    def cache_spec(self) -> LayerSpec:
        return self.attention.cache_spec()

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        x = x + self.attention(self.attention_norm(x), batch, view)
        return x + self.mlp(self.mlp_norm(x))


class Backbone(Module):
    """A model without an output matrix: token embedding, blocks and a last norm.

    A subclass annotates ``config`` and declares ``blocks`` with its own classes.
    """

    token_embedding: Embedding = submodule("token_embd", shape=lambda c, i: (None, c.dim))
    blocks: Sequence[Block] = layers("blk")
    norm: RMSNorm = submodule("output_norm", shape=lambda c, i: (c.dim,))

    def cache_spec(self) -> tuple[LayerSpec, ...]:
        """What the cache stores: one entry for each layer."""
        return tuple(block.cache_spec() for block in self.blocks)

    def __call__(self, batch: Batch, views: list[Any]) -> Tensor:
        """Normalised hidden states, (..., dim), of the rows ``batch.outputs``, or of all rows if that is None."""
        x = self.embed(batch)
        for block, view in zip(self.blocks, views, strict=True):
            x = block(x, batch, view)
        with scope("", len(self.blocks)):
            return self.norm(x if batch.outputs is None else x.take(batch.outputs))

    def embed(self, batch: Batch) -> Tensor:
        """The embeddings of the batch: (..., dim)."""
        self.token_embedding.require_rows(self.config.n_vocab, "the vocabulary has that many tokens")
        return batch.embed(self.token_embedding)


class Decoder(Backbone):
    """A text model: a backbone, and an output matrix that computes logits.

    class Model(nn.Decoder):
        config: Config
        blocks: list[Block] = layers("blk")
    """

    # many small models use one matrix for the token embedding and the output
    output: Linear = submodule("output", "token_embd", shape=lambda c, i: (None, c.dim))

    def __call__(self, batch: Batch, views: list[Any]) -> Tensor:
        """Logits, (k, vocab), of the rows ``batch.outputs``."""
        x = super().__call__(batch, views)
        with scope("", len(self.blocks)):
            return self.logits(x)

    def logits(self, x: Tensor) -> Tensor:
        """Normalised hidden states (k, dim) to logits (k, vocab)."""
        self.token_embedding.require_rows(
            self.output.weight.shape[0], "there are that many logits, and any can become a token"
        )
        return self.output(x)
