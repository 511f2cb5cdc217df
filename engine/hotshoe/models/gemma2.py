"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): norms around both halves, caps, a window in every second layer."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models.gemma import MLP, CappedDecoder, scale_key
from hotshoe.nn import LayerPattern, TextConfig, key, layers, pattern_key, submodule


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    window: int = key("attention.sliding_window", default=4096)
    pattern: LayerPattern = pattern_key(2)
    scale: float = scale_key(layers_27b=46)
    attention_softcap: float = key("attn_logit_softcapping", default=50.0)
    softcap: float = key("final_logit_softcapping", default=30.0)


class Attention(nn.Attention):
    config: Config

    @property
    def scale(self) -> float:
        return self.config.scale

    @property
    def softcap(self) -> float:
        return self.config.attention_softcap


class Block(nn.SandwichBlock):
    attention: Attention = submodule()
    mlp: MLP = submodule()


class Model(CappedDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
