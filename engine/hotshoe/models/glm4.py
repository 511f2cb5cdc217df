"""GLM-4-0414 (Z.ai 2025, arXiv:2406.12793): norms before and after both halves; RoPE on half of each head."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, TextConfig, layers, rope_key, submodule
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(interleaved=True)


class Block(nn.SandwichBlock):
    attention: nn.Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
