"""Qwen3-Next: as Qwen 3.5 with experts, but value heads of a key head follow each other, and matrices are packed."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import qwen35moe
from hotshoe.models.qwen35 import Attention
from hotshoe.nn import ExpertConfig, Linear, key, layers, nextn_layers, submodule
from hotshoe.nn.mixers import GatedDelta, StateSpace, recurrent_key, ssm_key
from hotshoe_core import Tensor, ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    ssm: StateSpace = ssm_key()
    interval: int = key("full_attention_interval", default=4, minimum=1)
    recurrent: tuple[bool, ...] = recurrent_key()


class DeltaNet(GatedDelta):
    """Rows of packed matrices are sorted by key head: what its value heads need follows each other."""

    beta = None  # type: ignore[assignment]
    alpha = None  # type: ignore[assignment]
    beta_alpha: Linear = submodule("ssm_ba", shape=lambda c, i: (2 * c.ssm.n_heads, c.dim))
    packed: Linear | None = submodule(  # in the files of 2025
        "ssm_in", instead_of=("qkv", "gate"), shape=lambda c, i: (c.ssm.inner + c.ssm.channels, c.dim)
    )

    def project(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.packed is None:
            return super().project(x)
        ssm, n = self.config.ssm, x.shape[0]
        parts = self.packed(x).reshape(n, ssm.n_groups, -1)
        qk, values = parts[..., : 2 * ssm.state], parts[..., 2 * ssm.state :]
        mixed = [y.reshape(n, -1) for y in (*qk.chunk(2), *values.chunk(2))]
        return ops.concat(*mixed[:3], axis=1), mixed[3]

    def rates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        n = x.shape[0]
        beta, alpha = self.beta_alpha(x).reshape(n, self.config.ssm.n_groups, -1).chunk(2)
        return beta.reshape(n, -1), alpha.reshape(n, -1)


class Block(qwen35moe.Block):
    attention: Attention | DeltaNet = submodule(  # type: ignore[assignment]
        choose=lambda c, i: DeltaNet if c.recurrent[i] else Attention
    )


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")
    nextn: list[qwen35moe.NextN] = nextn_layers("blk")


family = Family(Model)
