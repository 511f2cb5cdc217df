"""Qwen 3.5, 3.6 and 3.8 with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import qwen35
from hotshoe.nn import ExpertConfig, GatedSharedExperts, MixtureOfExperts, key, layers, rope_key, submodule
from hotshoe.nn.mixers import StateSpace, recurrent_key, ssm_key
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    rope: RoPE = rope_key(sections="interleaved")
    ssm: StateSpace = ssm_key()
    interval: int = key("full_attention_interval", default=4, minimum=1)
    recurrent: tuple[bool, ...] = recurrent_key()


class Mixture(MixtureOfExperts):
    shared: GatedSharedExperts = submodule()


class Block(qwen35.HybridBlock):
    mlp: Mixture = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
