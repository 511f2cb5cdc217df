"""Qwen 3.5, 3.6 and 3.8 with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import qwen35
from hotshoe.models.qwen2moe import Experts
from hotshoe.nn import ExpertConfig, layers, nextn_layers, submodule


@dataclass(frozen=True, kw_only=True)
class Config(qwen35.Config, ExpertConfig):
    """The config of Qwen 3.5, with experts."""


class Block(qwen35.HybridBlock):
    mlp: Experts = submodule()


class DraftingBlock(Block):
    attention: qwen35.Attention = submodule()


class NextN(nn.NextN):
    block: DraftingBlock = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")
    nextn: list[NextN] = nextn_layers("blk")


family = Family(Model)
