"""Building blocks for models."""

from hotshoe.nn.attention import Attention, FusedAttention
from hotshoe.nn.binder import bind
from hotshoe.nn.config import Config, TextConfig, TransformerConfig, derived, key, rope_key
from hotshoe.nn.decoder import Backbone, Block, Decoder, PreNormBlock
from hotshoe.nn.experts import ExpertConfig, Experts, MixtureOfExperts, SharedExperts
from hotshoe.nn.layers import Conv2D, Conv3D, Embedding, LayerNorm, Linear, RMSNorm
from hotshoe.nn.mlp import MLP, FusedGatedMLP, GatedMLP
from hotshoe.nn.module import Module, layers, parameter, part, tensor
from hotshoe.nn.rope import rope_from

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
