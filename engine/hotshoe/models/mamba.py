"""Mamba (Gu & Dao 2023, arXiv:2312.00752), and Falcon-Mamba (Zuo et al. 2024, arXiv:2410.05355), which adds norms."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import RMSNorm, key, layers, submodule
from hotshoe.nn.mixers import Mamba1, StateSpace, ssm_key
from hotshoe_core import Tensor, ops

_SELECTION_EPS = 1e-6  # no key says it; Falcon-Mamba's checkpoints have this one


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(nn.Config):
    norm_eps: float = key("attention.layer_norm_rms_epsilon", minimum=0)
    ssm: StateSpace = ssm_key(heads=False)
    normed: bool = key("ssm.dt_b_c_rms", default=False)  # the time steps, B and C


class Mixer(Mamba1):
    def select(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dt, keys, queries = super().select(values)
        if not self.config.normed:
            return dt, keys, queries
        dt, keys, queries = (ops.rms_norm(x, eps=_SELECTION_EPS) for x in (dt, keys, queries))
        return dt, keys, queries


class Block(nn.TransformerBlock):
    attention: Mixer = submodule()  # in the place of attention
    mlp_norm: RMSNorm | None = None
    mlp = None


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
