"""BLOOM (BigScience 2022, arXiv:2211.05100): ALiBi, LayerNorms, also of the embeddings, and biases."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import AlibiAttention, LayerNorm, LayerNormConfig, layers, submodule


class MLP(nn.MLP):
    activation = "gelu_tanh"


class Block(nn.TransformerBlock):
    attention: AlibiAttention = submodule()
    mlp: MLP = submodule()


class Model(nn.Decoder):
    config: LayerNormConfig
    embedding_norm: LayerNorm = submodule("token_embd_norm", shape=lambda c, i: (c.dim,))
    blocks: list[Block] = layers("blk")


family = Family(Model)
