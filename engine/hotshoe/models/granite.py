"""Granite 3 and 4.1 (IBM 2024): Llama with scaled embeddings, halves of blocks, scores and logits."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import llama
from hotshoe.nn import GatedMLP, TextConfig, key, layers, rope_key, submodule
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


class Attention(llama.Attention):
    @property
    def scale(self) -> float:
        return self.config.attention_scale or super().scale


class ScaledBlock(nn.TransformerBlock):
    attention: Attention = submodule()

    @property
    def residual_scale(self) -> float:
        return self.config.residual_scale or 1.0


class ScaledDecoder(nn.Decoder):
    @property
    def embedding_scale(self) -> float:
        return self.config.embedding_scale or 1.0

    @property
    def logit_scale(self) -> float:
        return 1.0 / self.config.logit_divisor


class Block(ScaledBlock):
    mlp: GatedMLP = submodule()


class Model(ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
