"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Llama with a mixture of experts in every block.

GGUF calls its architecture "llama", so models/llama.py picks this class.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.nn import ExpertConfig, MixtureOfExperts, key, layers, rope_key, submodule, tensor
from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    rope: RoPE = rope_key(interleaved=True)
    expert_dim: int = key("feed_forward_length", minimum=1)


class Attention(nn.Attention):
    rope_factors: Tensor | None = tensor("rope_freqs.weight", use="rope", optional=True, of_model=True)  # Llama 3's


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: MixtureOfExperts = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")
