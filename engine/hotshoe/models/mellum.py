"""Mellum 2 (JetBrains 2026): Qwen3 with experts, and a window with a RoPE of its own in most layers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import qwen3moe
from hotshoe.nn import ExpertConfig, LayerPattern, layers, pattern_key


@dataclass(frozen=True, kw_only=True)
class Config(ExpertConfig):
    pattern: LayerPattern = pattern_key(4, unscaled=True)


class Model(nn.Decoder):
    config: Config
    blocks: list[qwen3moe.Block] = layers("blk")


family = Family(Model)
