"""Hunyuan without experts (Tencent 2025): Llama whose queries and keys are normalised after RoPE."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import GatedMLP, NormedAttention, TextConfig, derived, layers, rope_from, submodule
from hotshoe.nn.bounds import check_range
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE

_ALPHA = "rope.scaling.alpha"


def _rope(metadata: Metadata, found: SimpleNamespace, _: Any) -> RoPE:
    """NTK-aware scaling: alpha stretches the frequency base, most of all for slow pairs."""
    rope = rope_from(metadata, found.head_dim, interleaved=False)
    alpha = check_range(metadata, _ALPHA, metadata.arch.get(_ALPHA, 0.0), 0, 1e6)
    if not alpha:
        return rope
    if found.head_dim <= 2:
        raise metadata.arch.error(_ALPHA, f"is {alpha}, but heads of {found.head_dim} elements have one frequency only")
    return replace(rope, base=rope.base * alpha ** (found.head_dim / (found.head_dim - 2)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = derived(_rope)


class Attention(NormedAttention):
    norm_after_rope = True


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
