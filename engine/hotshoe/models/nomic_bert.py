"""Nomic Embed: BERT with RoPE and, in version 1, a gated MLP (Nussbaum et al. 2024, arXiv:2402.01613).

Version 2 has a mixture of experts in every second layer (Nussbaum and Duderstadt 2025, arXiv:2502.07972).
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import MLP, ExpertConfig, GatedMLP, LayerNormConfig, MixtureOfExperts, derived, key, layers, submodule
from hotshoe_core import Tensor


class Block(nn.PostNormBlock):
    attention: nn.Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Encoder):
    config: LayerNormConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig(ExpertConfig):
    norm_eps: float = key("attention.layer_norm_epsilon", minimum=0)
    expert_dim: int = derived(lambda _, found, __: found.mlp_dim[0])
    normalize_experts: bool = key("expert_weights_norm", default=False)
    step: int = key("moe_every_n_layers", default=0)  # of each step of layers, the second has experts


class Experts(MixtureOfExperts):
    gate = None
    activation = "gelu"

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.reshape(-1, x.shape[-1])).reshape(*x.shape)


class MixtureBlock(nn.PostNormBlock):
    attention: nn.Attention = submodule()
    mlp: MLP | Experts = submodule(choose=lambda c, i: Experts if c.step and i % c.step == 1 else MLP)


class MixtureModel(nn.Encoder):
    config: MixtureConfig
    blocks: list[MixtureBlock] = layers("blk")


mixture_family = Family(MixtureModel)
