"""Qwen2 and 2.5 (Yang et al. 2024, arXiv:2407.10671): Llama with biases on q, k and v, and GPT-NeoX's rotation."""

from __future__ import annotations

from typing import Any

from hotshoe.models import llama
from hotshoe.models.registry import register
from hotshoe_core.gguf import Metadata


class Config(llama.Config):
    __slots__ = ()

    @classmethod
    def from_metadata(cls, metadata: Metadata, interleaved: bool = False) -> llama.Config:
        return super().from_metadata(metadata, interleaved)


@register("qwen2")
class Model(llama.Model):
    Config: Any = Config
