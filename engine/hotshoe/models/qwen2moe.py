"""Qwen1.5 and Qwen2 with experts (Yang et al. 2024, arXiv:2407.10671): a shared expert with a gate of its own."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertConfig, GatedSharedExperts, key, layers, submodule


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    normalize_experts: bool = key("expert_weights_norm", default=False)


class Experts(nn.MixtureOfExperts):
    shared: GatedSharedExperts = submodule()


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: Experts = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
