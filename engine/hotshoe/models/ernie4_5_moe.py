"""ERNIE 4.5 with experts (Baidu 2025): softmax experts with a correction, in every n-th layer after dense ones."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertLayersConfig, GatedMLP, layers, rope_key, submodule, tensor
from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertLayersConfig):
    rope: RoPE = rope_key(interleaved=True)


class Experts(nn.MixtureOfExperts):
    # llama.cpp's converter writes it with two axes
    correction: Tensor = tensor("exp_probs_b.bias", use="add", shape=lambda c, i: (1, c.n_experts))


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: GatedMLP | Experts = submodule(choose=lambda c, i: Experts if c.has_experts(i) else GatedMLP)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
