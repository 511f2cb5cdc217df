"""Building blocks for models: modules, declarations of their tensors, and configs. See docs/models.md."""

import importlib
from typing import TYPE_CHECKING

from hotshoe.nn.attention import Attention, FusedAttention, NormedAttention
from hotshoe.nn.basic import Conv2D, Conv3D, Embedding, LayerNorm, Linear, RMSNorm
from hotshoe.nn.binder import bind
from hotshoe.nn.config import Config, TextConfig, TransformerConfig, derived, key, rope_key
from hotshoe.nn.decoder import Backbone, Block, Decoder, PreNormBlock
from hotshoe.nn.mlp import MLP, FusedGatedMLP, GatedMLP
from hotshoe.nn.module import Module, layers, submodule, tensor
from hotshoe.nn.rope import rope_from, yarn_magnitude

if TYPE_CHECKING:
    from hotshoe.nn.experts import (
        ExpertConfig,
        ExpertLayersConfig,
        Experts,
        GatedSharedExperts,
        MixtureOfExperts,
        SharedExperts,
        dense_or_experts,
        gating_key,
    )

__all__ = [
    "MLP",
    "Attention",
    "Backbone",
    "Block",
    "Config",
    "Conv2D",
    "Conv3D",
    "Decoder",
    "Embedding",
    "ExpertConfig",
    "ExpertLayersConfig",
    "Experts",
    "FusedAttention",
    "FusedGatedMLP",
    "GatedMLP",
    "GatedSharedExperts",
    "LayerNorm",
    "Linear",
    "MixtureOfExperts",
    "Module",
    "NormedAttention",
    "PreNormBlock",
    "RMSNorm",
    "SharedExperts",
    "TextConfig",
    "TransformerConfig",
    "bind",
    "dense_or_experts",
    "derived",
    "gating_key",
    "key",
    "layers",
    "rope_from",
    "rope_key",
    "submodule",
    "tensor",
    "yarn_magnitude",
]

_EXPERTS = (  # imported on first use
    *("ExpertConfig", "ExpertLayersConfig", "Experts", "GatedSharedExperts", "MixtureOfExperts", "SharedExperts"),
    *("dense_or_experts", "gating_key"),
)


def __getattr__(name: str) -> object:
    if name in _EXPERTS:
        return getattr(importlib.import_module("hotshoe.nn.experts"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
