"""GLM-4.5 to 4.7 (Zhipu AI 2025, arXiv:2508.06471): partial RoPE, and sigmoid experts after dense first layers."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import RMSNorm, SigmoidExpertsConfig, derived, layers, rope_from, submodule
from hotshoe_core.gguf import Metadata
from hotshoe_core.ops import RoPE


def _rope(metadata: Metadata, found: SimpleNamespace, _: Any) -> RoPE:
    # a file whose tokens may have several positions: GLM-4.5V
    sections: Any = "contiguous" if "rope.dimension_sections" in metadata.arch else ""
    return rope_from(metadata, found.head_dim, interleaved=False, sections=sections)


@dataclass(frozen=True, kw_only=True)
class Config(SigmoidExpertsConfig):
    rope: RoPE = derived(_rope)


class Attention(nn.Attention):
    # only the largest has these norms; files do not say so
    q_norm: RMSNorm | None = submodule("attn_q_norm", optional=True, shape=lambda c, i: (c.head_dim,))
    k_norm: RMSNorm | None = submodule("attn_k_norm", optional=True, shape=lambda c, i: (c.head_dim,))


class Block(nn.ExpertBlock):
    attention: Attention = submodule()
    mlp_norm: RMSNorm = submodule("post_attention_norm", shape=lambda c, i: (c.dim,))


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
