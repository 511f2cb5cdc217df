"""The text model of Qwen3-VL with a mixture of experts in every block (Bai et al. 2025, arXiv:2511.21631)."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import qwen3moe
from hotshoe.models.qwen3vl import UNUSED
from hotshoe.nn import ExpertConfig, rope_key
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    rope: RoPE = rope_key(sections="interleaved")


class Model(qwen3moe.Model):
    config: Config

    def unused_keys(self) -> dict[str, str]:
        return super().unused_keys() | UNUSED


family = Family(Model)
