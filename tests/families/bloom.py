"""BloomForCausalLM of transformers, which also takes masks that differ by token: ALiBi then counts all positions."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.bloom import modeling_bloom as bloom


class BloomModel(bloom.BloomModel):
    def build_alibi_tensor(self, attention_mask: Any, num_heads: int, dtype: Any) -> Any:
        if attention_mask.ndim == 4:
            attention_mask = torch.ones(attention_mask.shape[0], attention_mask.shape[-1])
        return super().build_alibi_tensor(attention_mask, num_heads, dtype)


class BloomForCausalLM(bloom.BloomForCausalLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.transformer = BloomModel(config)
        self.post_init()
