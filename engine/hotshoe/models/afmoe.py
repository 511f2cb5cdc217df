"""Trinity (Arcee 2025), AFMoE: norms before and after each half, gated attention, NoPE in layers without a window."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import (
    GatedMLP,
    Linear,
    MixtureOfExperts,
    SigmoidExpertsConfig,
    dense_or_experts,
    layers,
    pattern_key,
    submodule,
)
from hotshoe.nn.pattern import LayerPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(SigmoidExpertsConfig):
    pattern: LayerPattern = pattern_key(4, rope_on_full=False)


class Attention(nn.NormedAttention):
    gate: Linear = submodule("attn_gate", shape=lambda c, i: (c.n_heads[i] * c.head_dim, c.dim))


class Block(nn.SandwichBlock):
    attention: Attention = submodule()
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")

    @property
    def embedding_scale(self) -> float:
        return float(self.config.dim**0.5)


family = Family(Model)
