"""Granite 4 H (IBM 2025): most layers are Mamba-2, the others attention, usually without RoPE; experts or one MLP."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import granitemoe
from hotshoe.nn import GatedMLP, MixtureOfExperts, key, layers, submodule
from hotshoe.nn.mixers import Mamba2, StateSpace, ssm_key
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(granitemoe.Config):
    n_experts: int = key("expert_count", default=0)
    n_experts_used: int = key("expert_used_count", default=0)
    logit_divisor: float = key("logit_scale", default=0.0)
    ssm: StateSpace = ssm_key()
    has_rope: bool = key("rope.scaling.finetuned", default=True)

    def rope_for(self, layer: int) -> RoPE | None:
        return self.rope if self.has_rope else None


class Block(granitemoe.ScaledBlock):
    attention: Mamba2 | granitemoe.Attention = submodule(
        choose=lambda c, i: granitemoe.Attention if c.n_kv_heads[i] else Mamba2
    )
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=lambda c, i: MixtureOfExperts if c.n_experts else GatedMLP)


class Model(granitemoe.ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
