"""dots.llm1 (rednote-hilab 2025, arXiv:2506.05767): norms on queries and keys, sigmoid experts after dense layers."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import SigmoidExpertsConfig, layers, submodule


class Block(nn.ExpertBlock):
    attention: nn.NormedAttention = submodule()


class Model(nn.Decoder):
    config: SigmoidExpertsConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
