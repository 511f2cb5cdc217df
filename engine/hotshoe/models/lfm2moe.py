"""LFM2 MoE (Liquid AI 2025, arXiv:2511.23404): LFM2 with sigmoid experts after dense first layers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import lfm2
from hotshoe.nn import (
    ExpertLayersConfig,
    GatedMLP,
    MixtureOfExperts,
    dense_or_experts,
    gating_key,
    key,
    layers,
    submodule,
)
from hotshoe.nn.experts import Gating


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertLayersConfig):
    kernel_size: int = key("shortconv.l_cache", minimum=2)
    gating: Gating = gating_key("sigmoid")


class Block(lfm2.HybridBlock):
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)


class Model(lfm2.HybridDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
