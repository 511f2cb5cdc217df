"""Backbone and Decoder: what text models have in common around their blocks, and the block most are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from hotshoe.kvcache import LayerSpec
from hotshoe.nn.layers import Embedding, Linear, RMSNorm
from hotshoe.nn.module import Module, layers, tensor
from hotshoe_core import Tensor, scope

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch

__all__ = ["Backbone", "Block", "Decoder", "PreNormBlock"]


class Block(Module):
    """One layer: ``block(x, batch, view)`` gives the next hidden states. A subclass says what it keeps."""

    def cache_spec(self) -> LayerSpec:
        """What the layer keeps between steps: see hotshoe.kvcache.spec."""
        raise NotImplementedError

    def __call__(self, x: Tensor, batch: Batch, cache: Any) -> Tensor:
        raise NotImplementedError


class Mixer(Protocol):
    """What lets tokens see each other: attention, or what stands in its place."""

    def cache_spec(self) -> LayerSpec:
        """What it keeps between steps."""

    def __call__(self, x: Tensor, batch: Batch, cache: Any) -> Tensor:
        """(n, dim) to the same."""


class FeedForward(Protocol):
    """What is computed of each token by itself."""

    def __call__(self, x: Tensor) -> Tensor:
        """(n, dim) to the same."""


class PreNormBlock(Block):
    """A norm before each half, whose result is added: the block of Llama and most models since.

    A model's own class declares ``attention`` and ``mlp`` as parts, of the classes it has for them.
    """

    attention_norm: RMSNorm = tensor("attn_norm", shape=lambda c, i: (c.dim,))
    attention: Mixer
    mlp_norm: RMSNorm = tensor("ffn_norm", shape=lambda c, i: (c.dim,))
    mlp: FeedForward

    def cache_spec(self) -> LayerSpec:
        return self.attention.cache_spec()

    def __call__(self, x: Tensor, batch: Batch, cache: Any) -> Tensor:
        x = x + self.attention(self.attention_norm(x), batch, cache)
        return x + self.mlp(self.mlp_norm(x))


class Backbone(Module):
    """Embedding, blocks and a norm. A model's own class declares ``blocks`` with its own kind of them."""

    tokens: Embedding = tensor("token_embd", shape=lambda c, i: (None, c.dim))
    blocks: Sequence[Block] = layers("blk")
    norm: RMSNorm = tensor("output_norm", shape=lambda c, i: (c.dim,))

    def cache_spec(self) -> tuple[LayerSpec, ...]:
        """One entry a layer."""
        return tuple(block.cache_spec() for block in self.blocks)

    def __call__(self, batch: Batch, cache: list[Any]) -> Tensor:
        """Hidden states, normalised, of the rows in ``batch.outputs``, or of all: (..., dim)."""
        x = self.embed(batch)
        for block, view in zip(self.blocks, cache, strict=True):
            x = block(x, batch, view)
        with scope("", len(self.blocks)):
            return self.norm(x if batch.outputs is None else x.take(batch.outputs))

    def embed(self, batch: Batch) -> Tensor:
        """(..., dim)."""
        self.tokens.require_rows(self.config.n_vocab, "the vocabulary has tokens up to that")
        return batch.embed(self.tokens)


class Decoder(Backbone):
    """A text model: a backbone and the logits."""

    # many small models share the two
    output: Linear = tensor("output", "token_embd", shape=lambda c, i: (None, c.dim))

    def __call__(self, batch: Batch, cache: list[Any]) -> Tensor:
        """Logits of the rows in ``batch.outputs``: (k, vocab)."""
        x = super().__call__(batch, cache)
        with scope("", len(self.blocks)):
            return self.logits(x)

    def logits(self, x: Tensor) -> Tensor:
        """(k, dim) to (k, vocab)."""
        self.tokens.require_rows(self.output.weight.shape[0], "there are as many logits, and any may become a token")
        return self.output(x)
