"""Laguna (Poolside 2026): attention with a softplus gate, more heads in layers with a window, sigmoid experts."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import Linear, SigmoidExpertsConfig, key, layers, pattern_key, submodule
from hotshoe.nn.pattern import LayerPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(SigmoidExpertsConfig):
    pattern: LayerPattern = pattern_key(4, dense_first=True, unscaled=True)
    n_shared_experts: int = key("expert_shared_count", default=1)


class Attention(nn.NormedAttention):
    gate: Linear = submodule("attn_gate", shape=lambda c, i: (None, c.dim))  # one row for each head, or each element
    gate_activation = "softplus"


class Block(nn.ExpertBlock):
    attention: Attention = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
