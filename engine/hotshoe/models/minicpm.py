"""MiniCPM 1 to 4 (OpenBMB 2024, arXiv:2404.06395): Llama whose embeddings, halves of blocks and logits are scaled."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import granitemoe, phi3
from hotshoe.nn import GatedMLP, TextConfig, key, layers, rope_key, submodule
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(interleaved=True)
    # old files lack the scales of the first model
    embedding_scale: float = key("embedding_scale", default=12.0)
    residual_scale: float = key("residual_scale", default=lambda c: 1.4 / c.n_layers**0.5)
    logit_divisor: float = key("logit_scale", minimum=1e-6, default=lambda c: c.dim / 256)


class Block(granitemoe.ScaledBlock):
    attention: phi3.Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(granitemoe.ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
