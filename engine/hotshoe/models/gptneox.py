"""GPT-NeoX and Pythia (Black et al. 2022, arXiv:2204.06745): parallel halves, LayerNorms, and partial RoPE."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import MLP, LayerNormConfig, key, layers, submodule


@dataclass(frozen=True, kw_only=True)
class Config(LayerNormConfig):
    parallel: bool = key("use_parallel_residual")


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: MLP = submodule()


class ParallelBlock(Block):
    parallel = True


class Model(nn.Decoder):
    config: Config
    blocks: list[Block | ParallelBlock] = layers("blk", choose=lambda c, i: ParallelBlock if c.parallel else Block)


family = Family(Model)
