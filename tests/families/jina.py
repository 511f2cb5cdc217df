"""Jina Embeddings 2 in torch, made of transformers' BERT. llama.cpp, on the same file, is the second oracle."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import BertModel

__all__ = ["JinaBertModel"]


class _Hidden(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)

    def forward(self, x: Any) -> Any:
        gate, up = self.gated_layers(x).chunk(2, dim=-1)
        return nn.functional.gelu(gate) * up


class JinaBertModel(BertModel):
    """BERT whose scores fall with the distance on both sides, without positions, and with a gate in the MLP."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.encoder.layer:
            layer.intermediate = _Hidden(config)

    def forward(self, input_ids: Any, **options: Any) -> Any:
        n, positions = self.config.num_attention_heads, torch.arange(input_ids.shape[1])
        slopes = torch.tensor([2.0 ** (-8 * (i + 1) / n) for i in range(n)]).reshape(-1, 1, 1)
        bias = -slopes * (positions[:, None] - positions).abs()
        return super().forward(input_ids, attention_mask=bias[None], **options)
