"""Gemma 3, the text model (Gemma Team 2025, arXiv:2503.19786): most layers have a sliding window, some are global."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models.gemma import MLP, CappedDecoder, scale_key
from hotshoe.nn import LayerPattern, TextConfig, key, layers, pattern_key, rope_key, submodule
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    head_dim: int = key("attention.key_length", default=256, minimum=1)
    window: int = key("attention.sliding_window", minimum=1)
    rope: RoPE = rope_key(base=1e6)
    pattern: LayerPattern = pattern_key(6, base=10000.0, unscaled=True)
    scale: float = scale_key(layers_27b=62)
    softcap: float = key("final_logit_softcapping", default=0.0)


class Attention(nn.NormedAttention):
    config: Config

    @property
    def scale(self) -> float:
        return self.config.scale


class Block(nn.SandwichBlock):
    attention: Attention = submodule()
    mlp: MLP = submodule()


class Model(CappedDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
