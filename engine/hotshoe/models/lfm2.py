"""LFM2 (Liquid AI 2025, arXiv:2511.23404): most layers are short gated convolutions, the others attention."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, RMSNorm, TextConfig, key, layers, submodule
from hotshoe.nn.mixers import ShortConv


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    kernel_size: int = key("shortconv.l_cache", minimum=2)  # tokens that a convolution sees


class AttentionBlock(nn.PreNormBlock):
    attention: nn.NormedAttention = submodule()
    mlp: GatedMLP = submodule()


class ConvolutionBlock(nn.PreNormBlock):
    attention: ShortConv = submodule()  # in the place of attention
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[AttentionBlock | ConvolutionBlock] = layers(
        "blk", choose=lambda config, i: AttentionBlock if config.n_kv_heads[i] else ConvolutionBlock
    )
    norm: RMSNorm = submodule("output_norm", "token_embd_norm", shape=lambda c, i: (c.dim,))


family = Family(Model)
