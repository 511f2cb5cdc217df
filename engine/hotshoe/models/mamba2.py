"""Mamba-2 (Dao & Gu 2024, arXiv:2405.21060): no attention; the cache holds one state of fixed size for each layer."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import RecurrentSpec, RecurrentView
from hotshoe.nn import RMSNorm, key, layers, submodule
from hotshoe.nn.batch import Batch
from hotshoe.nn.mixers import Mamba2, StateSpace, ssm_key
from hotshoe_core import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(nn.Config):
    norm_eps: float = key("attention.layer_norm_rms_epsilon", minimum=0)
    ssm: StateSpace = ssm_key()


class Block(nn.Block):
    norm: RMSNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    mixer: Mamba2 = submodule()

    def cache_spec(self) -> RecurrentSpec:
        return self.mixer.cache_spec()

    def __call__(self, x: Tensor, batch: Batch, view: RecurrentView) -> Tensor:
        return x + self.mixer(self.norm(x), batch, view)


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
