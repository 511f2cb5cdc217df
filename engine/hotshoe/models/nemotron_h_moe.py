"""Nemotron 3 (NVIDIA 2025, arXiv:2512.20848): Nemotron-H with experts without a gate, which may compute in a latent."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models.nemotron_h import Attention, OneHalf, SquaredMLP, choose_half, norm_eps
from hotshoe.nn import ExpertConfig, Experts, Linear, MixtureOfExperts, derived, gating_key, key, layers, submodule
from hotshoe.nn.experts import Gating
from hotshoe.nn.mixers import Mamba2, StateSpace, ssm_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    norm_eps: float = derived(norm_eps)
    ssm: StateSpace = ssm_key()
    gating: Gating = gating_key("sigmoid")
    latent: int = key("moe_latent_size", default=0)  # inputs of an expert; 0: all of the hidden state

    @property
    def expert_in(self) -> int:
        return self.latent or self.dim


class SharedExpert(SquaredMLP):
    up: Linear = submodule("ffn_up_shexp", shape=lambda c, i: (c.shared_dim, c.dim))
    down: Linear = submodule("ffn_down_shexp", shape=lambda c, i: (c.dim, c.shared_dim))


class Mixture(MixtureOfExperts):
    activation = "relu_squared"
    gate = None
    up: Experts = submodule("ffn_up_exps", shape=lambda c, i: (c.n_experts, c.expert_dim, c.expert_in))
    down: Experts = submodule("ffn_down_exps", shape=lambda c, i: (c.n_experts, c.expert_in, c.expert_dim))
    shared: SharedExpert = submodule()  # type: ignore[assignment]
    latent_in: Linear | None = submodule(
        "ffn_latent_down", when=lambda c, i: c.latent > 0, shape=lambda c, i: (c.latent, c.dim)
    )
    latent_out: Linear | None = submodule(
        "ffn_latent_up", when=lambda c, i: c.latent > 0, shape=lambda c, i: (c.dim, c.latent)
    )


class Block(OneHalf):
    half: Mamba2 | Attention | Mixture = submodule(choose=lambda c, i: choose_half(c, i, Mixture))


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
