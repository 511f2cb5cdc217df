"""Mistral Small 3.1 and later, Ministral 3 and Devstral 2 (Mistral AI 2025).

Llama, but queries are scaled by their positions, as in Llama 4, from the end of the context before YaRN on.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import llama
from hotshoe.nn import ExpertLayersConfig, Temperature, key, layers, rope_key, submodule
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE


def _magnitude(arch: Metadata, factor: float) -> float:
    """YaRN's magnitude. A checkpoint divides it by another one, with a multiplier of its own, and so removes it."""
    multiplier = arch.get("rope.scaling.yarn_log_multiplier", 0.0)
    return nn.yarn_magnitude(factor) / nn.yarn_magnitude(factor, multiplier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertLayersConfig):
    rope: RoPE = rope_key(interleaved=True, magnitude=_magnitude)
    expert_dim: int = key("feed_forward_length", minimum=1)
    temperature_scale: float = key("attention.temperature_scale", default=0.0)


class Attention(llama.Attention):
    config: Config

    @property
    def temperature(self) -> Temperature | None:
        scale = self.config.temperature_scale
        return Temperature(scale, self.config.rope.original_context) if scale else None


class Block(nn.ExpertBlock):
    attention: Attention = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
