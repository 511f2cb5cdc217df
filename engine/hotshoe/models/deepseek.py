"""DeepSeek 1 (arXiv:2401.06066), Ling 1 (Ant Group 2025), DeepSeek-OCR's text: Llama with shared and routed experts."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertLayersConfig, key, layers, rope_key, submodule
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, kw_only=True)
class Config(ExpertLayersConfig):
    rope: RoPE = rope_key(interleaved=True)
    normalize_experts: bool = key("expert_weights_norm", default=False)


class Block(nn.ExpertBlock):
    attention: nn.Attention = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
