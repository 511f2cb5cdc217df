"""The text model of Qwen3-VL (Bai et al. 2025, arXiv:2511.21631): Qwen3, whose tokens may have several positions.

A token of a text has the same position in each section of RoPE. Pictures need an encoder, which is in another file.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotshoe.families import Family
from hotshoe.models import qwen3
from hotshoe.nn import TextConfig, rope_key
from hotshoe_core.ops import RoPE

UNUSED = {"n_deepstack_layers": "layers that also read what an encoder finds in a picture"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(TextConfig):
    rope: RoPE = rope_key(sections="interleaved")


class Model(qwen3.Model):
    config: Config

    def unused_keys(self) -> dict[str, str]:
        return super().unused_keys() | UNUSED


family = Family(Model)
