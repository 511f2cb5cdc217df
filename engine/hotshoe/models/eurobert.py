"""EuroBERT (Boizard et al. 2025, arXiv:2503.05500), Jina Embeddings 5: Llama as an encoder."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, RMSNorm, TextConfig, layers, submodule


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Encoder):
    config: TextConfig
    token_types = embedding_norm = None
    blocks: list[Block] = layers("blk")
    norm: RMSNorm = submodule("output_norm", shape=lambda c, i: (c.dim,))

    def unused_keys(self) -> dict[str, str]:
        return {"classifier.pooling_type": "of classifiers"}


family = Family(Model)
