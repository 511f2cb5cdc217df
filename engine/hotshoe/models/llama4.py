"""Llama 4 (Meta 2025): experts in every n-th layer, attention in chunks, NoPE in every fourth layer."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import AttentionSpec
from hotshoe.nn import (
    ExpertLayersConfig,
    GatedMLP,
    Temperature,
    UnweightedRMSNorm,
    derived,
    gating_key,
    key,
    layers,
    rope_key,
    submodule,
    tensor,
)
from hotshoe.nn.experts import Gating
from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE

_NOPE_STEP = 4  # every fourth layer sees all positions, and has no RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertLayersConfig):
    rope: RoPE = rope_key(interleaved=True)
    window: int = derived(lambda *_: 0)
    # llama.cpp has these numbers in its code, and no keys
    chunk: int = key("attention.chunk_size", default=8192, minimum=1)
    temperature_scale: float = key("attention.temperature_scale", default=0.1)
    temperature_length: int = key("attention.temperature_length", default=8192, minimum=1)
    normalize_experts: bool = key("expert_weights_norm", default=False)
    gating: Gating = gating_key("sigmoid_of_chosen")
    shared_dim: int = derived(lambda metadata, found, _: found.expert_dim)


def _has_rope(layer: int) -> bool:
    return (layer + 1) % _NOPE_STEP != 0


def _has_norms(config: Config, layer: int) -> bool:
    return _has_rope(layer) and config.n_experts != 128  # Maverick has none; files do not say so


class Attention(nn.Attention):
    config: Config
    rope_factors: Tensor | None = tensor("rope_freqs.weight", use="rope", optional=True, of_model=True)
    q_norm: UnweightedRMSNorm | None = submodule(when=_has_norms)
    k_norm: UnweightedRMSNorm | None = submodule(when=_has_norms)
    norm_after_rope = True

    @property
    def rope(self) -> RoPE | None:
        return self.config.rope if _has_rope(self.layer) else None

    @property
    def temperature(self) -> Temperature | None:
        cfg = self.config
        return None if _has_rope(self.layer) else Temperature(cfg.temperature_scale, cfg.temperature_length, offset=1)

    def cache_spec(self) -> AttentionSpec:
        return dataclasses.replace(super().cache_spec(), chunk=self.config.chunk if _has_rope(self.layer) else 0)


class Experts(nn.MixtureOfExperts):
    def combine(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Multiply the inputs of the experts, not their results, by the weights."""
        return self.down(self.hidden(x[:, None] * weights[..., None], chosen), chosen).sum(axis=1)


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: GatedMLP | Experts = submodule(choose=lambda c, i: Experts if c.has_experts(i) else GatedMLP)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
