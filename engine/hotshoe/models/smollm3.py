"""SmolLM3 (Hugging Face 2025): Llama without RoPE in every fourth layer, after arXiv:2501.18795."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import qwen2
from hotshoe.nn import TextConfig, layers, rope_key
from hotshoe_core.ops import RoPE

_PERIOD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(interleaved=True)

    def rope_for(self, layer: int) -> RoPE | None:
        return self.rope if (layer + 1) % _PERIOD else None


class Model(nn.Decoder):
    config: Config
    blocks: list[qwen2.Block] = layers("blk")


family = Family(Model)
