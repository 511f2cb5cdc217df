"""Building blocks for models."""

import importlib
from typing import TYPE_CHECKING

from hotshoe.nn.attention import Attention, FusedAttention
from hotshoe.nn.binder import bind
from hotshoe.nn.config import Config, TextConfig, TransformerConfig, derived, key, rope_key
from hotshoe.nn.decoder import Backbone, Block, Decoder, PreNormBlock
from hotshoe.nn.layers import Conv2D, Conv3D, Embedding, LayerNorm, Linear, RMSNorm
from hotshoe.nn.mlp import MLP, FusedGatedMLP, GatedMLP
from hotshoe.nn.module import Module, layers, parameter, part, tensor
from hotshoe.nn.rope import rope_from

if TYPE_CHECKING:
    from hotshoe.nn.experts import ExpertConfig, Experts, MixtureOfExperts, SharedExperts

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
    "Experts",
    "FusedAttention",
    "FusedGatedMLP",
    "GatedMLP",
    "LayerNorm",
    "Linear",
    "MixtureOfExperts",
    "Module",
    "PreNormBlock",
    "RMSNorm",
    "SharedExperts",
    "TextConfig",
    "TransformerConfig",
    "bind",
    "derived",
    "key",
    "layers",
    "parameter",
    "part",
    "rope_from",
    "rope_key",
    "tensor",
]

_EXPERTS = ("ExpertConfig", "Experts", "MixtureOfExperts", "SharedExperts")  # few models have them


def __getattr__(name: str) -> object:
    if name in _EXPERTS:
        return getattr(importlib.import_module("hotshoe.nn.experts"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
