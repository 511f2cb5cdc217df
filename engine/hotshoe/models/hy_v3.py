"""Hunyuan 3 (Tencent 2026): norms on queries and keys, and sigmoid experts after dense first layers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import (
    GatedMLP,
    SigmoidExpertsConfig,
    key,
    layers,
    submodule,
    tensor,
)
from hotshoe_core import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(SigmoidExpertsConfig):
    n_dense: int = key("leading_dense_block_count", default=1)  # as in all published models; llama.cpp writes no key


class Experts(nn.MixtureOfExperts):
    correction: Tensor = tensor("exp_probs_b", "exp_probs_b.bias", use="add", shape=lambda c, i: (c.n_experts,))


class Block(nn.TransformerBlock):
    attention: nn.NormedAttention = submodule()
    mlp: GatedMLP | Experts = submodule(choose=lambda c, i: Experts if c.has_experts(i) else GatedMLP)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
