"""GLM-4-0414 (Z.ai 2025, arXiv:2406.12793): norms before and after both halves; RoPE on half of each head."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, TextConfig, derived, layers, rope_from, submodule
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE


def _rope(metadata: Metadata, found: SimpleNamespace, _: Any) -> RoPE:
    # a file whose tokens may have several positions (GLM-OCR) also has its rows in another order
    if "rope.dimension_sections" in metadata.arch:
        return rope_from(metadata, found.head_dim, interleaved=False, sections="contiguous")
    return rope_from(metadata, found.head_dim, interleaved=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = derived(_rope)


class Block(nn.SandwichBlock):
    attention: nn.Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
