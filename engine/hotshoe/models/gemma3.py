"""Gemma 3, text only (Gemma Team 2025, arXiv:2503.19786): most layers have a sliding window, some are global."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models.gemma import MLP, CappedDecoder
from hotshoe.nn import LayerPattern, TextConfig, key, layers, pattern_key, rope_key, submodule
from hotshoe_core.ops import RoPE

_LAYERS_27B = 62  # only the 27B scales scores by (dim / n_heads) ** -0.5; files do not say so


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    head_dim: int = key("attention.key_length", default=256, minimum=1)
    window: int = key("attention.sliding_window", minimum=1)
    rope: RoPE = rope_key(base=1e6)
    pattern: LayerPattern = pattern_key(6, base=10000.0, unscaled=True)
    scale: float = key(
        "attention.scale",
        default=lambda c: (c.dim / c.n_heads[0] if c.n_layers == _LAYERS_27B else c.head_dim) ** -0.5,
    )
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
