"""North Mini (Cohere 2026): Command A with sigmoid experts after dense first layers, which always have RoPE."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models.command_r import ScaledDecoder
from hotshoe.nn import (
    GatedMLP,
    LayerNorm,
    LayerPattern,
    RMSNorm,
    SigmoidExpertsConfig,
    derived,
    key,
    layers,
    pattern_key,
    rope_key,
    submodule,
)
from hotshoe.nn.bounds import check_range
from hotshoe_core import Tensor
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE

_RMS, _LAYER_NORM = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


def _epsilon(metadata: Metadata, _: SimpleNamespace, __: Any) -> float:
    name = _RMS if _RMS in metadata.arch else _LAYER_NORM
    return check_range(metadata, name, metadata.arch.require(name, float), 0, None)


@dataclass(frozen=True, kw_only=True)
class Config(SigmoidExpertsConfig):
    has_rms_norms: bool = derived(lambda metadata, *_: _RMS in metadata.arch)
    norm_eps: float = derived(_epsilon)
    window: int = key("attention.sliding_window", minimum=1)
    rope: RoPE = rope_key(interleaved=True)
    pattern: LayerPattern = pattern_key(4)
    logit_scale: float = key("logit_scale")

    def rope_for(self, layer: int) -> RoPE | None:
        return self.pattern.rope_for(layer) if self.pattern.windowed[layer] or layer < self.n_dense else None


class Experts(nn.MixtureOfExperts):
    def __call__(self, x: Tensor) -> Tensor:
        y = super().__call__(x)
        return y if self.shared is None else y * 0.5  # the average of both


def _norm(config: Any, layer: int) -> type[nn.Norm]:
    return RMSNorm if config.has_rms_norms else LayerNorm


class Block(nn.TransformerBlock):
    parallel = True
    attention_norm: nn.Norm = submodule("attn_norm", choose=_norm, shape=lambda c, i: (c.dim,))
    attention: nn.Attention = submodule()
    mlp_norm = None
    mlp: GatedMLP | Experts = submodule(choose=lambda c, i: Experts if c.has_experts(i) else GatedMLP)


class Model(ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")
    norm: nn.Norm = submodule("output_norm", choose=_norm, shape=lambda c, i: (c.dim,))


family = Family(Model)
