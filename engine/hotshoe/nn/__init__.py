"""Building blocks for models: modules, declarations of their tensors, and configs. See docs/models.md."""

import importlib
from typing import TYPE_CHECKING

from hotshoe.nn.attention import (
    AlibiAttention,
    Attention,
    NormedAttention,
    ReadingAttention,
    UnrotatedAttention,
    WideNormedAttention,
)
from hotshoe.nn.basic import (
    Conv2D,
    Conv3D,
    Embedding,
    LayerNorm,
    LayerNormByHead,
    Linear,
    Norm,
    RMSNorm,
    UnweightedRMSNorm,
    WideRMSNorm,
)
from hotshoe.nn.binder import bind
from hotshoe.nn.config import (
    Config,
    LayerNormConfig,
    TextConfig,
    TransformerConfig,
    derived,
    key,
    pattern_key,
    rope_key,
)
from hotshoe.nn.decoder import Backbone, Block, Decoder, SandwichBlock, TransformerBlock
from hotshoe.nn.encoder import Encoder, PostNormBlock
from hotshoe.nn.mlp import MLP, GatedMLP
from hotshoe.nn.module import Module, layers, nextn_layers, submodule, tensor
from hotshoe.nn.nextn import NextN
from hotshoe.nn.pattern import LayerPattern
from hotshoe.nn.positions import LearnedPositions, Temperature, alibi_slopes
from hotshoe.nn.rope import rope_from, yarn_magnitude

if TYPE_CHECKING:
    from hotshoe.nn.experts import (
        ExpertBlock,
        ExpertConfig,
        ExpertLayersConfig,
        Experts,
        GatedSharedExperts,
        MixtureOfExperts,
        SharedExperts,
        SigmoidExpertsConfig,
        dense_or_experts,
        gating_key,
    )

__all__ = [
    "MLP",
    "AlibiAttention",
    "Attention",
    "Backbone",
    "Block",
    "Config",
    "Conv2D",
    "Conv3D",
    "Decoder",
    "Embedding",
    "Encoder",
    "ExpertBlock",
    "ExpertConfig",
    "ExpertLayersConfig",
    "Experts",
    "GatedMLP",
    "GatedSharedExperts",
    "LayerNorm",
    "LayerNormByHead",
    "LayerNormConfig",
    "LayerPattern",
    "LearnedPositions",
    "Linear",
    "MixtureOfExperts",
    "Module",
    "NextN",
    "Norm",
    "NormedAttention",
    "PostNormBlock",
    "RMSNorm",
    "ReadingAttention",
    "SandwichBlock",
    "SharedExperts",
    "SigmoidExpertsConfig",
    "Temperature",
    "TextConfig",
    "TransformerBlock",
    "TransformerConfig",
    "UnrotatedAttention",
    "UnweightedRMSNorm",
    "WideNormedAttention",
    "WideRMSNorm",
    "alibi_slopes",
    "bind",
    "dense_or_experts",
    "derived",
    "gating_key",
    "key",
    "layers",
    "nextn_layers",
    "pattern_key",
    "rope_from",
    "rope_key",
    "submodule",
    "tensor",
    "yarn_magnitude",
]

_EXPERTS = (  # imported on first use
    *("ExpertConfig", "ExpertLayersConfig", "Experts", "GatedSharedExperts", "MixtureOfExperts", "SharedExperts"),
    *("ExpertBlock", "SigmoidExpertsConfig", "dense_or_experts", "gating_key"),
)


def __getattr__(name: str) -> object:
    if name in _EXPERTS:
        return getattr(importlib.import_module("hotshoe.nn.experts"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
