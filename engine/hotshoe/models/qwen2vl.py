"""The text model of Qwen2-VL and 2.5-VL (arXiv:2409.12191, 2502.13923): Qwen2, whose tokens may have several positions.

A token of a text has the same position in each section of RoPE. Pictures need an encoder, which is in another file.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import qwen2
from hotshoe.nn import TextConfig, rope_key
from hotshoe_core.ops import RoPE


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(sections="contiguous")


class Model(qwen2.Model):
    config: Config


family = Family(Model)
