"""ChatGLM 3 and GLM-4-9B (Zhipu 2024, arXiv:2406.12793): RoPE on half of each head, biases, packed matrices."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import glm4, qwen2
from hotshoe.nn import layers


class Model(nn.Decoder):
    config: glm4.Config
    blocks: list[qwen2.Block] = layers("blk")


family = Family(Model)
