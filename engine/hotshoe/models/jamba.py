"""Jamba (AI21 2024, arXiv:2403.19887): most layers are Mamba, the others attention; every second MLP is a mixture."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import (
    ExpertLayersConfig,
    GatedMLP,
    MixtureOfExperts,
    RMSNorm,
    UnrotatedAttention,
    derived,
    key,
    layers,
    submodule,
)
from hotshoe.nn.mixers import Mamba1, StateSpace, ssm_key
from hotshoe_core import Tensor
from hotshoe_core.errors import WeightsError


@dataclass(frozen=True, kw_only=True)
class Config(ExpertLayersConfig):
    expert_dim: int = key("feed_forward_length", minimum=1)
    normalize_experts: bool = derived(lambda *_: False)
    ssm: StateSpace = ssm_key(heads=False)


class Mamba(Mamba1):
    dt_norm: RMSNorm = submodule("ssm_dt_norm", shape=lambda c, i: (c.ssm.rank,))
    keys_norm: RMSNorm = submodule("ssm_b_norm", shape=lambda c, i: (c.ssm.state,))
    queries_norm: RMSNorm = submodule("ssm_c_norm", shape=lambda c, i: (c.ssm.state,))

    def select(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dt, keys, queries = super().select(values)
        return self.dt_norm(dt), self.keys_norm(keys), self.queries_norm(queries)


class Block(nn.TransformerBlock):
    attention: UnrotatedAttention | Mamba = submodule(
        choose=lambda c, i: UnrotatedAttention if c.n_kv_heads[i] else Mamba
    )
    dense: GatedMLP | None = submodule(optional=True)  # no key says which layers have experts
    experts: MixtureOfExperts | None = submodule(optional=True)

    @property
    def mlp(self) -> GatedMLP | MixtureOfExperts:  # type: ignore[override]
        found = self.dense if self.experts is None else self.experts
        if found is None:
            raise WeightsError(f"layer {self.layer} has neither an MLP nor experts", hint="download the file again")
        return found


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
