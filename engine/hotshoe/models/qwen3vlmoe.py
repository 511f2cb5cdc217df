"""The text model of Qwen3-VL with a mixture of experts in every block (Bai et al. 2025, arXiv:2511.21631)."""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import qwen3moe
from hotshoe.models.qwen3vl import Deepstack, deepstack_key
from hotshoe.nn import ExpertConfig, rope_key
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(ExpertConfig):
    rope: RoPE = rope_key(sections="interleaved")
    n_deepstack: int = deepstack_key()


class Model(Deepstack, qwen3moe.Model):
    config: Config


family = Family(Model)
