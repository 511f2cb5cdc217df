"""EXAONE 4 (LG AI 2025, arXiv:2507.11407): norms after both halves. The 32B has a window and RoPE in most layers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, LayerPattern, TextConfig, key, layers, pattern_key, submodule, tensor
from hotshoe_core import Tensor

_LAYERS_32B = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    window: int = key("attention.sliding_window", default=lambda c: 4096 if c.n_layers == _LAYERS_32B else 0)
    pattern: LayerPattern = pattern_key(4, rope_on_full=False)


class Attention(nn.NormedAttention):
    rope_factors: Tensor | None = tensor(
        "rope_freqs.weight", use="rope", optional=True, of_model=True, shape=lambda c, i: (c.rope.dim // 2,)
    )


class Block(nn.SandwichBlock):
    attention_norm = mlp_norm = None
    attention: Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
