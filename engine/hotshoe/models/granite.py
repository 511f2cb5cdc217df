"""Granite 3 and 4.1 (IBM 2024): Llama with scaled embeddings, halves of blocks, scores and logits."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import granitemoe
from hotshoe.nn import GatedMLP, TextConfig, key, layers, rope_key, submodule, tensor
from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(interleaved=True)
    has_rope: bool = key("rope.scaling.finetuned", default=True)
    # 0 in a file means that there is no scale
    attention_scale: float = key("attention.scale", default=0.0)
    embedding_scale: float = key("embedding_scale", default=0.0)
    residual_scale: float = key("residual_scale", default=0.0)
    logit_divisor: float = key("logit_scale", minimum=1e-6)

    def rope_for(self, layer: int) -> RoPE | None:
        return self.rope if self.has_rope else None


class Attention(granitemoe.Attention):
    rope_factors: Tensor | None = tensor("rope_freqs.weight", use="rope", optional=True, of_model=True)


class Block(granitemoe.ScaledBlock):
    attention: Attention = submodule()
    mlp: GatedMLP = submodule()


class Model(granitemoe.ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
