"""Llama (Touvron et al. 2023, arXiv:2302.13971; Llama 3, arXiv:2407.21783), and Mistral, which has its architecture."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, Module, TextConfig, layers, parameter, part, rope_key
from hotshoe_core import Tensor
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(interleaved=True)


class Attention(nn.Attention):
    rope_factors: Tensor | None = parameter("rope_freqs.weight", use="div", optional=True, of_model=True)


class Block(nn.PreNormBlock):
    attention: Attention = part()
    mlp: GatedMLP = part()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")

    Config = Config


def _variant(metadata: Metadata) -> type[Module]:
    """GGUF knows no architecture of its own for Mixtral: it is a llama whose blocks have experts."""
    if metadata.arch.get("expert_count", 0):
        from hotshoe.models import mixtral

        return mixtral.Model
    return Model


family = Family(_variant)
