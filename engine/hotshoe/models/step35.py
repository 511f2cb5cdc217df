"""Step 3.5 Flash (StepFun 2026, arXiv:2602.10604): gated attention, more heads in layers with a window, experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, LayerPattern, Linear, SigmoidExpertsConfig, derived, key, layers, submodule, tensor
from hotshoe.nn.pattern import pattern_from
from hotshoe_core import Tensor
from hotshoe_core.gguf import Metadata


def _pattern(metadata: Metadata, found: SimpleNamespace, _: Any) -> LayerPattern:
    """Files state how many elements rotate in layers with a window. In full layers, half as many do."""
    half = replace(found.rope, dim=found.rope.dim // 2)
    whole = pattern_from(metadata, found.n_layers, found.window, found.rope, period=4)
    return replace(whole, full_rope=half)


@dataclass(frozen=True, kw_only=True)
class Config(SigmoidExpertsConfig):
    window: int = key("attention.sliding_window", minimum=1)
    pattern: LayerPattern = derived(_pattern)
    expert_step: int = key("moe_every_n_layers", default=1, minimum=1)
    # bounds of the halves of an MLP's product in each layer; 0: none
    expert_limit: tuple[float, ...] = key("swiglu_clamp_exp", per_layer=True, minimum=0, default=0.0)
    mlp_limit: tuple[float, ...] = key("swiglu_clamp_shexp", per_layer=True, minimum=0, default=0.0)


class Attention(nn.NormedAttention):
    gate: Linear = submodule("attn_gate", shape=lambda c, i: (c.n_heads[i], c.dim))
    freqs: Tensor | None = tensor(
        "rope_freqs.weight", use="rope", optional=True, of_model=True, shape=lambda c, i: (c.rope.dim // 2,)
    )

    @property
    def rope_factors(self) -> Tensor | None:
        if self.freqs is None or self.window or self.rope is None:
            return None
        return self.freqs[: self.rope.dim // 2]


def _limited(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return gate.silu().clamp(max=limit) * up.clamp(-limit, limit)


class MLP(GatedMLP):
    def product(self, gate: Tensor, up: Tensor) -> Tensor:
        limit = self.config.mlp_limit[self.layer]
        return _limited(gate, up, limit) if limit else super().product(gate, up)


class SharedExperts(MLP, nn.SharedExperts):
    pass


class Experts(nn.MixtureOfExperts):
    config: Config
    shared: SharedExperts | None = submodule(when=lambda c, i: c.shared_dim > 0)

    def product(self, gate: Tensor, up: Tensor) -> Tensor:
        limit = self.config.expert_limit[self.layer]
        return _limited(gate, up, limit) if limit else super().product(gate, up)


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: MLP | Experts = submodule(choose=lambda c, i: Experts if c.has_experts(i) else MLP)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
