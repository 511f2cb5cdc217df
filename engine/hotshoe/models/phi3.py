"""Phi-3, 3.5 and 4-mini (Abdin et al. 2024, arXiv:2404.14219): fused matrices and LongRoPE."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, Module, TextConfig, layers, submodule, tensor
from hotshoe_core import Tensor


class LongFactors(Module):
    """Divisors of RoPE's frequencies, for the ``rope_factors`` of attention."""

    long_factors: Tensor | None = tensor("rope_factors_long.weight", use="rope", optional=True, of_model=True)
    short_factors: Tensor | None = tensor("rope_factors_short.weight", use="rope", optional=True, of_model=True)

    @property
    def rope_factors(self) -> Tensor | None:
        """LongRoPE has one set of factors for contexts up to the original length, and one for longer contexts."""
        cfg = self.config
        return self.long_factors if cfg.n_ctx > cfg.rope.original_context else self.short_factors


class Attention(LongFactors, nn.Attention):
    pass


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: TextConfig
    blocks: list[Block] = layers("blk")


family = Family(Model)
