"""dots.llm1 (rednote-hilab 2025, arXiv:2506.05767): norms on queries and keys, sigmoid experts after dense layers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
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
    normalize_experts: bool = key("expert_weights_norm", default=False)
    gating: Gating = gating_key("sigmoid")


class Block(nn.TransformerBlock):
    attention: nn.NormedAttention = submodule()
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
