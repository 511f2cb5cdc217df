"""Qwen3 (Yang et al. 2025, arXiv:2505.09388); Qwen3 Embedding and Reranker (Zhang et al. 2025, arXiv:2506.05176)."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, Linear, Module, TextConfig, layers, submodule
from hotshoe.tasks import Task
from hotshoe_core import Tensor
from hotshoe_core.gguf import Metadata

_POOLED = (1, 2, 3)  # pooling_type: mean, first, last
_RANK = 4  # pooling_type of rerankers


class Block(nn.TransformerBlock):
    attention: nn.NormedAttention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: TextConfig
    blocks: list[Block] = layers("blk")


class EmbeddingModel(nn.Backbone):
    """Qwen3 without its output matrix. The vector of a text is the hidden state of its last token."""

    config: TextConfig
    blocks: list[Block] = layers("blk")
    task = Task.EMBEDDING
    causal = True
    compute_bound = True

    def unused_tensors(self) -> dict[str, str]:
        return super().unused_tensors() | {"output.weight": "an embedding model computes no logits"}


class Reranker(EmbeddingModel):
    """Qwen3 with a classifier: the two rows of the output matrix for the next tokens "yes" and "no"."""

    task = Task.RERANK
    classifier: Linear = submodule("cls.output", shape=lambda c, i: (2, c.dim))

    def score(self, pooled: Tensor) -> Tensor:
        """Hidden states of the last tokens, (b, dim), to logits of yes and no, (b, 2)."""
        return self.classifier(pooled)


def _variant(metadata: Metadata) -> type[Module]:
    pooling = metadata.arch.get("pooling_type", 0)
    return Reranker if pooling == _RANK else EmbeddingModel if pooling in _POOLED else Model


family = Family(_variant)
