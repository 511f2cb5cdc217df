"""Nemotron-H and Nemotron Nano 2 (NVIDIA 2025, arXiv:2504.03624): a layer is Mamba-2, attention, or an MLP.

Positions are known from the recurrent layers only: attention has no RoPE.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.kvcache import LayerSpec
from hotshoe.nn import MLP, RMSNorm, TextConfig, derived, layers, submodule
from hotshoe.nn.batch import Batch
from hotshoe.nn.bounds import check_range
from hotshoe.nn.mixers import Mamba2, StateSpace, ssm_key
from hotshoe_core import Tensor
from hotshoe_core.gguf import Metadata


def norm_eps(metadata: Metadata, *_: Any) -> float:
    """Read epsilon of the RMS norms. llama.cpp's converter writes the key of LayerNorms."""
    name = "attention.layer_norm_rms_epsilon"
    name = name if name in metadata.arch else "attention.layer_norm_epsilon"
    return check_range(metadata, name, metadata.arch.require(name, float), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    norm_eps: float = derived(norm_eps)
    ssm: StateSpace = ssm_key()


class Attention(nn.Attention):
    rope = None


class SquaredMLP(MLP):
    activation = "relu_squared"


class OneHalf(nn.Block):
    """A block with a single half. A subclass declares ``half``, and picks it with ``choose_half``."""

    norm: RMSNorm = submodule("attn_norm", shape=lambda c, i: (c.dim,))
    half: Any

    def cache_spec(self) -> LayerSpec:
        spec: LayerSpec = self.half.cache_spec() if isinstance(self.half, (Mamba2, Attention)) else None
        return spec

    def __call__(self, x: Tensor, batch: Batch, view: Any) -> Tensor:
        y: Tensor = self.norm(x)
        y = self.half(y) if view is None else self.half(y, batch, view)
        return x + y


def choose_half(config: Any, layer: int, mlp: type[nn.Module]) -> type[nn.Module]:
    if config.mlp_dim[layer]:
        return mlp
    return Attention if config.n_kv_heads[layer] else Mamba2


class Block(OneHalf):
    half: Mamba2 | Attention | SquaredMLP = submodule(choose=lambda c, i: choose_half(c, i, SquaredMLP))


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
