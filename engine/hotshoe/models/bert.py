"""BERT (Devlin et al. 2018, arXiv:1810.04805): the encoder of MiniLM, BGE, GTE, E5 and of many rerankers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import (
    MLP,
    LearnedPositions,
    Linear,
    Module,
    PostNormBlock,
    TransformerConfig,
    derived,
    key,
    layers,
    submodule,
)
from hotshoe.tasks import Task
from hotshoe_core import Tensor
from hotshoe_core.gguf import Metadata

_RANK = 4  # pooling_type of rerankers


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TransformerConfig):
    norm_eps: float = key("attention.layer_norm_epsilon", minimum=0)
    window: int = derived(lambda *_: 0)


class Attention(nn.Attention):
    rope = None  # learned position embeddings are added to the tokens instead


class Block(PostNormBlock):
    attention: Attention = submodule()
    mlp: MLP = submodule()


class Model(nn.Encoder):
    config: Config
    positions: LearnedPositions = submodule("position_embd", shape=lambda c, i: (None, c.dim))
    blocks: list[Block] = layers("blk")


class Reranker(Model):
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
