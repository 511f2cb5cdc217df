"""gpt-oss (OpenAI 2025, arXiv:2508.10925): attention sinks, biases everywhere, and experts with a clamped SwiGLU."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import ExpertConfig, RMSNorm, gating_key, key, layers, pattern_key, rope_key, submodule, tensor
from hotshoe.nn.experts import Gating
from hotshoe.nn.pattern import LayerPattern
from hotshoe_core import Tensor
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    rope: RoPE = rope_key(truncate=False)  # as in all published checkpoints; GGUF has no key for it
    window: int = key("attention.sliding_window", minimum=1)
    pattern: LayerPattern = pattern_key(2)
    gating: Gating = gating_key("softmax_of_chosen")


class Attention(nn.Attention):
    sinks: Tensor = tensor("attn_sinks.weight", use="attention", shape=lambda c, i: (c.n_heads[i],))


class Experts(nn.MixtureOfExperts):
    activation = "clamped_swiglu"


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp_norm: RMSNorm = submodule("post_attention_norm", shape=lambda c, i: (c.dim,))
    mlp: Experts = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
