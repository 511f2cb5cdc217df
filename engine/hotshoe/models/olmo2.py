"""OLMo 2 and 3 (Ai2 2025, arXiv:2501.00656, arXiv:2512.13961): norms after both halves, and over all heads together.

OLMo 3 has a sliding window in most layers, where RoPE is not scaled.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, LayerPattern, TextConfig, WideNormedAttention, layers, pattern_key, submodule


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    pattern: LayerPattern = pattern_key(4, unscaled=True)


class Block(nn.SandwichBlock):
    attention_norm = mlp_norm = None
    attention: WideNormedAttention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
