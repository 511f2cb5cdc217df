"""K-EXAONE (LG AI 2025): EXAONE 4 with norms before both halves, and sigmoid experts after dense first layers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import exaone4
from hotshoe.nn import LayerPattern, SigmoidExpertsConfig, key, layers, pattern_key, submodule


@dataclass(frozen=True, kw_only=True)
class Config(SigmoidExpertsConfig):
    window: int = key("attention.sliding_window", minimum=1)
    pattern: LayerPattern = pattern_key(4, rope_on_full=False)


class Block(nn.ExpertBlock):
    attention: exaone4.Attention = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
