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


class HybridBlock(nn.TransformerBlock):
    attention: nn.NormedAttention | ShortConv = submodule(
        choose=lambda c, i: nn.NormedAttention if c.n_kv_heads[i] else ShortConv
    )


class HybridDecoder(nn.Decoder):
    norm: RMSNorm = submodule("output_norm", "token_embd_norm", shape=lambda c, i: (c.dim,))


class Block(HybridBlock):
    mlp: GatedMLP = submodule()


class Model(HybridDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
