"""LFM2 MoE (Liquid AI 2025, arXiv:2511.23404): LFM2 with sigmoid experts after dense first layers."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import (
    ExpertLayersConfig,
    GatedMLP,
    MixtureOfExperts,
    RMSNorm,
    dense_or_experts,
    gating_key,
    key,
    layers,
    submodule,
)
from hotshoe.nn.experts import Gating
from hotshoe.nn.mixers import ShortConv


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertLayersConfig):
    kernel_size: int = key("shortconv.l_cache", minimum=2)
    gating: Gating = gating_key("sigmoid")


class Block(nn.TransformerBlock):
    attention: nn.NormedAttention | ShortConv = submodule(
        choose=lambda c, i: nn.NormedAttention if c.n_kv_heads[i] else ShortConv
    )
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")
    norm: RMSNorm = submodule("output_norm", "token_embd_norm", shape=lambda c, i: (c.dim,))


family = Family(Model)
