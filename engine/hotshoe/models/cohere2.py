"""Command R7B and Command A (Cohere 2025, arXiv:2504.00698): Command R with a window and RoPE in most layers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models.command_r import ParallelBlock, ScaledDecoder
from hotshoe.nn import LayerNormConfig, LayerPattern, key, layers, pattern_key, rope_key, submodule
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(LayerNormConfig):
    window: int = key("attention.sliding_window", minimum=1)
    rope: RoPE = rope_key(interleaved=True)
    pattern: LayerPattern = pattern_key(4, rope_on_full=False)
    logit_scale: float = key("logit_scale")


class Block(ParallelBlock):
    attention: nn.Attention = submodule()


class Model(ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
