"""Falcon-H1 (TII 2025, arXiv:2507.22448): every layer has attention and Mamba-2 side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import AttentionSpec, RecurrentSpec
from hotshoe.nn import GatedMLP, Module, RMSNorm, TextConfig, layers, submodule, tensor
from hotshoe.nn.batch import Batch
from hotshoe.nn.mixers import Mamba2, StateSpace, ssm_key
from hotshoe_core import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    ssm: StateSpace = ssm_key()


class Mamba(Mamba2):
    norm: Tensor | None = tensor(
        "ssm_norm.weight", use="mul", optional=True,
        shape=lambda c, i: (c.ssm.n_groups, c.ssm.inner // c.ssm.n_groups),
    )  # fmt: skip


class Mixers(Module):
    attention: nn.Attention = submodule()
    mamba: Mamba = submodule()

    def cache_spec(self) -> tuple[AttentionSpec, RecurrentSpec]:
        return self.attention.cache_spec(), self.mamba.cache_spec()

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        return self.attention(x, batch, view[0]) + self.mamba(x, batch, view[1])


class FeedForwardNorm(RMSNorm):
    weight: Tensor = tensor("ffn_norm", use="rms_norm", shape=lambda c, i: (c.dim,))  # as llama.cpp has it


class Block(nn.TransformerBlock):
    attention: Mixers = submodule()
    mlp_norm: FeedForwardNorm = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
