"""StableLM 3B and 2 (Bellagente et al. 2024, arXiv:2402.17834): Llama with LayerNorms, and RoPE on a part of a head."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, LayerNormConfig, key, layers, submodule


@dataclass(frozen=True, kw_only=True)
class Config(LayerNormConfig):
    parallel: bool = key("use_parallel_residual", default=False)


class Block(nn.TransformerBlock):
    attention: nn.Attention = submodule()
    mlp: GatedMLP = submodule()


class ParallelBlock(Block):
    mlp_norm = None
    parallel = True


class Model(nn.Decoder):
    config: Config
    blocks: list[Block | ParallelBlock] = layers("blk", choose=lambda c, i: ParallelBlock if c.parallel else Block)


family = Family(Model)
