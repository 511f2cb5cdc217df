"""Encoders with Llama's blocks: EuroBERT (Boizard et al. 2025, arXiv:2503.05500), Llama-Embed-Nemotron (2511.07025)."""

from __future__ import annotations

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.models import llama, qwen2
from hotshoe.nn import RMSNorm, TextConfig, layers, submodule


class Model(nn.Encoder):
    config: TextConfig
    token_types = None
    embedding_norm = None
    blocks: list[qwen2.Block] = layers("blk")
    norm: RMSNorm = submodule("output_norm", shape=lambda c, i: (c.dim,))

    def unused_keys(self) -> dict[str, str]:
        return {"classifier.pooling_type": "of classifiers"}


class LlamaModel(Model):
    config: llama.Config
    blocks: list[llama.Block] = layers("blk")  # type: ignore[assignment]


family = Family(Model)
llama_family = Family(LlamaModel)
