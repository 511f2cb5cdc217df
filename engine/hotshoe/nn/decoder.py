"""Backbone and Decoder: the parts of a text model around its blocks; TransformerBlock: the block of most models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from hotshoe.kvcache import AttentionSpec, LayerSpec
from hotshoe.nn.basic import Embedding, LayerNorm, Linear, Norm, RMSNorm
from hotshoe.nn.config import LayerNormConfig
from hotshoe.nn.module import Module, layers, submodule
from hotshoe_core import Tensor, scope

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch
    from hotshoe.nn.nextn import NextN
    from hotshoe.nn.positions import LearnedPositions

__all__ = ["Backbone", "Block", "Decoder", "SandwichBlock", "TransformerBlock"]


def _norm_class(config: Any, layer: int) -> type[Norm]:
    """The norms of a model, unless it declares others."""
    return LayerNorm if isinstance(config, LayerNormConfig) else RMSNorm


class Block(Module):
    """Base class of layers. ``block(x, batch, view)`` returns the next hidden states."""

    def cache_spec(self) -> LayerSpec:
        """What the cache stores for this layer: an AttentionSpec, a RecurrentSpec, a CrossSpec, or None."""
        raise NotImplementedError

    def store(self, rows: Tensor, view: Any) -> None:
        """Store what the layer needs of an encoder's rows, (m, dim). Only for a layer whose spec is a CrossSpec."""
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


class TransformerBlock(Block):
    """A block of two halves, attention and an MLP, each with a norm before it: (n, dim) to (n, dim).

        class Block(nn.TransformerBlock):
            attention: Attention = submodule()
            mlp: GatedMLP = submodule()

    A subclass declares ``attention`` and ``mlp`` with its own classes. Norms are RMS norms, or LayerNorms if the
    config is a LayerNormConfig; a subclass may declare others, or set norms to None. A layer may lack a half:
    ``submodule(choose=…)`` returns None for it.
    """

    parallel: ClassVar[bool] = False
    """True if both halves read the input of the block. They share ``attention_norm`` if ``mlp_norm`` is None."""
    attention_norm: Norm | None = submodule("attn_norm", choose=_norm_class, shape=lambda c, i: (c.dim,))
    attention: Mixer | None
    post_attention_norm: Norm | None = None
    """A norm of attention's result, before it is added."""
    mlp_norm: Norm | None = submodule("ffn_norm", choose=_norm_class, shape=lambda c, i: (c.dim,))
    mlp: FeedForward | None
    post_mlp_norm: Norm | None = None
    """A norm of the MLP's result, before it is added."""

    @property
    def residual_scale(self) -> float:
        """The factor of both halves' results, before they are added."""
        return 1.0

    def cache_spec(self) -> LayerSpec:
        return None if self.attention is None else self.attention.cache_spec()

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        before, normed = x, _through(self.attention_norm, x)
        if self.attention is not None:
            x = x + self._scaled(_through(self.post_attention_norm, self.attention(normed, batch, view)))
        if self.mlp is None:
            return x
        if not self.parallel:
            normed = _through(self.mlp_norm, x)
        elif self.mlp_norm is not None:
            normed = self.mlp_norm(before)
        return x + self._scaled(_through(self.post_mlp_norm, self.mlp(normed)))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.residual_scale == 1.0 else x * self.residual_scale


class SandwichBlock(TransformerBlock):
    """A TransformerBlock with a norm before and after each half, after Ding et al. 2021, arXiv:2105.13290."""

    post_attention_norm: Norm | None = submodule("post_attention_norm", choose=_norm_class, shape=lambda c, i: (c.dim,))
    post_mlp_norm: Norm | None = submodule("post_ffw_norm", choose=_norm_class, shape=lambda c, i: (c.dim,))


def _through(norm: Norm | None, x: Tensor) -> Tensor:
    return x if norm is None else norm(x)


class Backbone(Module):
    """A model without an output matrix: token embedding, blocks and a last norm.

    A subclass annotates ``config`` and declares ``blocks`` with its own classes.
    """

    token_embedding: Embedding = submodule("token_embd", shape=lambda c, i: (None, c.dim))
    positions: LearnedPositions | None = None
    """A vector for each position, which is added to the embedding."""
    token_types: Embedding | None = None
    """A vector for each type of token, which is added to the embedding. Tokens have type 0 unless the batch says."""
    embedding_norm: Norm | None = None
    """A norm of the embeddings."""
    blocks: Sequence[Block] = layers("blk")
    norm: Norm | None = submodule("output_norm", choose=_norm_class, shape=lambda c, i: (c.dim,))

    @property
    def embedding_scale(self) -> float:
        """The factor of the tokens' embeddings."""
        return 1.0

    def cache_spec(self) -> tuple[LayerSpec, ...]:
        """What the cache stores: one entry for each layer."""
        specs = tuple(block.cache_spec() for block in self.blocks)
        if self.positions is None:
            return specs
        # a learned position is part of the keys and values
        return tuple(replace(s, shiftable=False) if isinstance(s, AttentionSpec) else s for s in specs)

    def __call__(self, batch: Batch, views: list[Any]) -> Tensor:
        """Hidden states after the last norm, (..., dim), of the rows ``batch.outputs``; of all rows if that is None."""
        x = self.run(self.embed(batch), batch, views)
        with scope("", len(self.blocks)):
            return _through(self.norm, x if batch.outputs is None else x.take(batch.outputs))

    def run(self, x: Tensor, batch: Batch, views: list[Any]) -> Tensor:
        """Compute the blocks: embeddings to hidden states, both (..., dim)."""
        for block, view in zip(self.blocks, views, strict=True):
            x = block(x, batch, view)
        return x

    def store(self, rows: Tensor, views: list[Any]) -> None:
        """Store what layers need of an encoder's rows, (m, dim). views: None for the layers that need nothing."""
        for block, view in zip(self.blocks, views, strict=True):
            if view is not None:
                block.store(rows, view)

    def embed(self, batch: Batch) -> Tensor:
        """The embeddings of the batch: (..., dim)."""
        self.token_embedding.require_rows(self.config.n_vocab, "the vocabulary has that many tokens")
        scale = self.embedding_scale
        x = batch.embed(self.token_embedding if scale == 1.0 else lambda ids: self.token_embedding(ids) * scale)
        if self.positions is not None:
            x = x + self.positions(batch.positions)
        if self.token_types is not None:
            types = self.token_types
            x = x + (types.weight[0] if batch.token_types is None else types(batch.token_types))
        return _through(self.embedding_norm, x)


class Decoder(Backbone):
    """A text model: a backbone, and an output matrix that computes logits.

    class Model(nn.Decoder):
        config: Config
        blocks: list[Block] = layers("blk")
    """

    # many small models use one matrix for the token embedding and the output
    output: Linear = submodule("output", "token_embd", shape=lambda c, i: (None, c.dim))
    nextn: Sequence[NextN] = ()
    """The layer that drafts tokens, if the file has one and it is to be used."""

    @property
    def logit_scale(self) -> float:
        """The factor of the logits."""
        return 1.0

    @property
    def final_softcap(self) -> float:
        """Logits become ``final_softcap * tanh(logits / final_softcap)``, after the scale; 0 for no cap."""
        return 0.0

    def __call__(self, batch: Batch, views: list[Any]) -> Tensor:
        """Logits, (k, vocab), of the rows ``batch.outputs``."""
        x = super().__call__(batch, views)
        with scope("", len(self.blocks)):
            return self.logits(x)

    def cache_spec(self) -> tuple[LayerSpec, ...]:
        return (*super().cache_spec(), *(layer.cache_spec() for layer in self.nextn))

    def with_hidden(self, batch: Batch, views: list[Any]) -> tuple[Tensor, Tensor]:
        """Logits as ``__call__`` gives them, and the hidden states of the same rows, (k, dim), for ``draft``.

        Stores what the drafting layer needs of all rows.
        """
        (layer,) = self.nextn
        *views, drafting = views
        embeddings = self.embed(batch)
        x = self.run(embeddings, batch, views)
        with scope("", len(self.blocks)):
            x = _through(self.norm, x)
            layer.store(embeddings, x, batch, drafting)
            x = x if batch.outputs is None else x.take(batch.outputs)
            return self.logits(x), x

    def draft(self, batch: Batch, hidden: Tensor, view: Any, n_vocab: int) -> tuple[Tensor, Tensor]:
        """Guess: logits (n, n_vocab) and hidden states (n, dim), from the hidden states after the tokens before.

        hidden: as ``with_hidden`` or ``draft`` gave them, (n, dim). view: of what the drafting layer attends to.
        n_vocab: the first tokens of the vocabulary, which may be guessed.
        """
        (layer,) = self.nextn
        with scope("", len(self.blocks)):
            x = layer(self.embed(batch), hidden, batch, view)
            return self.logits(x)[:, :n_vocab], x

    def logits(self, x: Tensor) -> Tensor:
        """Normalised hidden states (k, dim) to logits (k, vocab)."""
        self.token_embedding.require_rows(
            self.output.weight.shape[0], "there are that many logits, and any can become a token"
        )
        logits, cap = self.output(x), self.final_softcap
        if self.logit_scale != 1.0:
            logits = logits * self.logit_scale
        return (logits * (1 / cap)).tanh() * cap if cap else logits
