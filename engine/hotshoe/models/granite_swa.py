"""Granite with a sliding window (IBM 2026): attention sinks, a window in most layers, RoPE in some; or experts."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import granitemoe
from hotshoe.nn import GatedMLP, LayerPattern, Linear, key, layers, pattern_key, submodule, tensor
from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(granitemoe.Config):
    window: int = key("attention.sliding_window", minimum=1)
    pattern: LayerPattern = pattern_key(4, dense_first=True)
    rotated: tuple[bool, ...] = key("attention.rope_pattern", per_layer=True, default=True)
    expert_dim: int = key("feed_forward_length", default=0)

    def rope_for(self, layer: int) -> RoPE | None:
        return self.rope if self.rotated[layer] else None


class Attention(granitemoe.Attention):
    sinks: Tensor = tensor("attn_sinks.weight", use="attention", shape=lambda c, i: (c.n_heads[i],))


class SharedExperts(nn.SharedExperts):
    gate_up: Linear | None = submodule(  # type: ignore[assignment]
        "ffn_up_shexp", instead_of=("gate", "up"), shape=lambda c, i: (2 * c.shared_dim, c.dim)
    )


class Experts(nn.MixtureOfExperts):
    shared: SharedExperts | None = submodule(when=lambda c, i: c.shared_dim > 0)


class Block(granitemoe.ScaledBlock):
    attention: Attention = submodule()
    mlp: GatedMLP | Experts = submodule(choose=lambda c, i: Experts if c.has_experts(i) else GatedMLP)


class Model(granitemoe.ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
