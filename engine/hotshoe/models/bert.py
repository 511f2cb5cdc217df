"""BERT (Devlin et al. 2018, arXiv:1810.04805): the encoder of MiniLM, BGE, GTE, E5 and of many rerankers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import AttentionView
from hotshoe.nn import MLP, Embedding, LayerNorm, Linear, Module, TransformerConfig, derived, key, layers, submodule
from hotshoe.nn.batch import Batch
from hotshoe.tasks import Task
from hotshoe_core import Tensor
from hotshoe_core.errors import WeightsError
from hotshoe_core.gguf import Metadata

_RANK = 4  # pooling_type of rerankers


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TransformerConfig):
    norm_eps: float = key("attention.layer_norm_epsilon", minimum=0)
    window: int = derived(lambda *_: 0)


class Attention(nn.Attention):
    rope = None  # learned position embeddings are added to the tokens instead


class Block(Module):
    """A block with a norm after attention and a norm after the MLP: (b, n, dim) to (b, n, dim)."""

    attention: Attention = submodule()
    attention_norm: LayerNorm = submodule("attn_output_norm", shape=lambda c, i: (c.dim,))
    mlp: MLP = submodule()
    mlp_norm: LayerNorm = submodule("layer_output_norm", shape=lambda c, i: (c.dim,))

    def __call__(self, x: Tensor, batch: Batch, view: AttentionView) -> Tensor:
        x = self.attention_norm(x + self.attention(x, batch, view))
        return self.mlp_norm(x + self.mlp(x))


class Encoder(Module):
    config: Config
    token_embedding: Embedding = submodule("token_embd", shape=lambda c, i: (None, c.dim))
    token_types: Embedding = submodule("token_types", shape=lambda c, i: (None, c.dim))
    positions: Embedding = submodule("position_embd", shape=lambda c, i: (None, c.dim))
    norm: LayerNorm = submodule("token_embd_norm", shape=lambda c, i: (c.dim,))
    blocks: list[Block] = layers("blk")
    compute_bound = True

    def __call__(self, batch: Batch, views: list[Any]) -> Tensor:
        """Hidden states of the last layer: (b, n, dim)."""
        n_positions = self.positions.weight.shape[0]
        if n_positions < self.config.n_ctx:
            raise WeightsError(
                f"position_embd has {n_positions} rows; expected {self.config.n_ctx}, one for each token of the context"
            )
        self.token_embedding.require_rows(self.config.n_vocab, "the vocabulary has that many tokens")
        x = batch.embed(self.token_embedding) + self.positions(batch.positions)
        types = self.token_types.weight[0] if batch.token_types is None else self.token_types(batch.token_types)
        x = self.norm(x + types)  # a single text has type 0
        for block, view in zip(self.blocks, views, strict=True):
            x = block(x, batch, view)
        return x


class Model(Encoder):
    task = Task.EMBEDDING


class Reranker(Encoder):
    task = Task.RERANK
    pooler: Linear | None = submodule("cls", optional=True, shape=lambda c, i: (None, c.dim))
    classifier: Linear | None = submodule("cls.output", optional=True, shape=lambda c, i: (None, c.dim))

    def score(self, pooled: Tensor) -> Tensor:
        """Hidden states of the first tokens, (b, dim), to scores, (b, labels)."""
        if self.pooler is not None:
            pooled = self.pooler(pooled).tanh()
        return pooled if self.classifier is None else self.classifier(pooled)


def _variant(metadata: Metadata) -> type[Module]:
    arch = metadata.arch
    ranks = arch.get("pooling_type", 0) == _RANK or "classifier.output_labels" in arch
    return Reranker if ranks else Model


family = Family(_variant)
