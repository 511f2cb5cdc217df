"""Granite 3 MoE (IBM 2024): a Llama whose embeddings, halves of blocks, scores and logits are scaled, with experts."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import (
    ExpertLayersConfig,
    GatedMLP,
    MixtureOfExperts,
    dense_or_experts,
    key,
    layers,
    rope_key,
    submodule,
)
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertLayersConfig):
    rope: RoPE = rope_key(interleaved=True)
    expert_dim: int = key("feed_forward_length", minimum=1)
    # 0 in a file means that there is no scale
    attention_scale: float = key("attention.scale", default=0.0)
    embedding_scale: float = key("embedding_scale", default=0.0)
    residual_scale: float = key("residual_scale", default=0.0)
    logit_divisor: float = key("logit_scale", minimum=1e-6)
    has_rope: bool = key("rope.scaling.finetuned", default=True)

    def rope_for(self, layer: int) -> RoPE | None:
        return self.rope if self.has_rope else None


class Attention(nn.Attention):
    @property
    def scale(self) -> float:
        return self.config.attention_scale or super().scale


class ScaledBlock(nn.TransformerBlock):
    @property
    def residual_scale(self) -> float:
        return self.config.residual_scale or 1.0


class ScaledDecoder(nn.Decoder):
    def unused_keys(self) -> dict[str, str]:
        names = [f"ssm.{name}" for name in ("conv_kernel", "inner_size", "state_size", "time_step_rank", "group_count")]
        why = "files of Granite 4 without recurrent layers, or without experts, have their sizes nevertheless"
        return super().unused_keys() | dict.fromkeys([*names, "expert_shared_feed_forward_length"], why)

    @property
    def embedding_scale(self) -> float:
        return self.config.embedding_scale or 1.0

    @property
    def logit_scale(self) -> float:
        return 1.0 / (self.config.logit_divisor or 1.0)


class Block(ScaledBlock):
    attention: Attention = submodule()
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)


class Model(ScaledDecoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
