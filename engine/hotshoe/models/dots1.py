"""dots.llm1 (rednote-hilab 2025, arXiv:2506.05767): norms on queries and keys, sigmoid experts after dense layers."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import (
    GatedMLP,
    MixtureOfExperts,
    SigmoidExpertsConfig,
    dense_or_experts,
    layers,
    submodule,
)


class Block(nn.TransformerBlock):
    attention: nn.NormedAttention = submodule()
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)


class Model(nn.Decoder):
    config: SigmoidExpertsConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
