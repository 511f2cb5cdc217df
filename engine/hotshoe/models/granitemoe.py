"""Granite 3 MoE (IBM 2024): a Llama whose embeddings, halves of blocks, scores and logits are scaled, with experts."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models.granite import ScaledBlock, ScaledDecoder
from hotshoe.nn import ExpertConfig, MixtureOfExperts, key, layers, rope_key, submodule
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    rope: RoPE = rope_key(interleaved=True)
    expert_dim: int = key("feed_forward_length", minimum=1)
    # 0 in a file means that there is no scale
    attention_scale: float = key("attention.scale", default=0.0)
    embedding_scale: float = key("embedding_scale", default=0.0)
    residual_scale: float = key("residual_scale", default=0.0)
    logit_divisor: float = key("logit_scale", minimum=1e-6)


class Block(ScaledBlock):
    mlp: MixtureOfExperts = submodule()


class Model(ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
