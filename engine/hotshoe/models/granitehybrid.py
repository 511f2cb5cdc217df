"""Granite 4 H (IBM 2025): most layers are Mamba-2, the others attention, usually without RoPE; experts or one MLP."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import granitemoe
from hotshoe.nn import GatedMLP, MixtureOfExperts, dense_or_experts, key, layers, submodule
from hotshoe.nn.mixers import Mamba2, StateSpace, ssm_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(granitemoe.Config):
    logit_divisor: float = key("logit_scale", default=0.0)
    ssm: StateSpace = ssm_key()


class Block(granitemoe.ScaledBlock):
    attention: Mamba2 | granitemoe.Attention = submodule(
        choose=lambda c, i: granitemoe.Attention if c.n_kv_heads[i] else Mamba2
    )
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)


class Model(granitemoe.ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
