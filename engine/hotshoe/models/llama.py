"""Llama 1 to 3 (Touvron et al. 2023, arXiv:2302.13971; arXiv:2407.21783) and Mistral, one architecture."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, Module, TextConfig, layers, rope_key, submodule, tensor
from hotshoe_core import Tensor
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE


# The strings name keys and tensors of the GGUF file; docs/models.md explains all declarations.
@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(interleaved=True)  # rotates pairs (2i, 2i + 1)


class Attention(nn.Attention):
    # Llama 3.1 and later: divisors of RoPE's frequencies, which all layers share
    rope_factors: Tensor | None = tensor("rope_freqs.weight", use="rope", optional=True, of_model=True)


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


def _variant(metadata: Metadata) -> type[Module]:
    """Pick Mixtral for files with experts: GGUF calls its architecture "llama" too."""
    if metadata.arch.get("expert_count", 0):
        from hotshoe.models import mixtral

        return mixtral.Model
    return Model


family = Family(_variant)
