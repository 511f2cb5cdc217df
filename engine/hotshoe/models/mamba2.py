"""Mamba-2 (Dao & Gu 2024, arXiv:2405.21060): no attention; the cache holds one state of fixed size for each layer."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import key, layers, submodule
from hotshoe.nn.mixers import Mamba2, StateSpace, ssm_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(nn.Config):
    norm_eps: float = key("attention.layer_norm_rms_epsilon", minimum=0)
    ssm: StateSpace = ssm_key()


class Block(nn.TransformerBlock):
    attention: Mamba2 = submodule()  # in the place of attention
    mlp_norm = mlp = None


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
