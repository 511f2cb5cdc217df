"""Llama Nemotron Super and Ultra (NVIDIA 2025, arXiv:2505.00949), DeciLM: Llama whose layers may lack a half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import llama
from hotshoe.nn import GatedMLP, Linear, Module, RMSNorm, layers, submodule

if TYPE_CHECKING:
    from hotshoe.nn.batch import Batch
    from hotshoe_core import Tensor


class LinearMixer(Module):
    """A matrix in the place of attention."""

    out: Linear = submodule("attn_output", shape=lambda c, i: (c.dim, c.dim))

    def cache_spec(self) -> None:
        return None

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        return self.out(x)


def _mixer(config: llama.Config, layer: int) -> type[Module] | None:
    if config.n_kv_heads[layer]:
        return llama.Attention
    return LinearMixer if config.n_heads[layer] else None


class Block(nn.TransformerBlock):
    attention_norm: RMSNorm | None = submodule(
        "attn_norm", when=lambda c, i: c.n_heads[i] > 0, shape=lambda c, i: (c.dim,)
    )
    attention: llama.Attention | LinearMixer | None = submodule(choose=_mixer)
    mlp_norm: RMSNorm | None = submodule("ffn_norm", when=lambda c, i: c.mlp_dim[i] > 0, shape=lambda c, i: (c.dim,))
    mlp: GatedMLP | None = submodule(when=lambda c, i: c.mlp_dim[i] > 0)


class Model(nn.Decoder):
    config: llama.Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
