"""Models that transformers lacks, made of its parts."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import LlamaForCausalLM
from transformers.models.deepseek_ocr2 import modeling_deepseek_ocr2 as ocr
from transformers.models.step3p7 import modeling_step3p7 as step

__all__ = ["AlibiLlamaForCausalLM", "DeciLMForCausalLM", "DeepseekForCausalLM", "LingForCausalLM", "Step35ForCausalLM"]


class _WithOutput:
    """A text model with an output matrix. The second base is the class of its weights' initialization."""

    text_model: Any

    def __init__(self: Any, config: Any) -> None:
        super().__init__(config)
        self.model = self.text_model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(self: Any, input_ids: Any, **options: Any) -> Any:
        states = self.model(input_ids, **options)
        states.logits = self.lm_head(states.last_hidden_state)
        return states


class DeepseekForCausalLM(_WithOutput, ocr.DeepseekOcr2TextPreTrainedModel):
    """DeepSeek 1: the text model of DeepSeek-OCR 2, with an output matrix."""

    text_model = ocr.DeepseekOcr2TextModel


class AlibiLlamaForCausalLM(LlamaForCausalLM):
    """Llama without RoPE, whose scores fall with the distance."""

    def forward(self, input_ids: Any, **options: Any) -> Any:
        n, heads = input_ids.shape[1], self.config.num_attention_heads
        slopes = torch.tensor([2.0 ** (-8 * (i + 1) / heads) for i in range(heads)]).reshape(-1, 1, 1)
        positions = torch.arange(n)
        mask = slopes * (positions - positions[:, None]) + torch.full((n, n), -torch.inf).triu(1)
        ones = torch.ones(1, n, self.config.head_dim)
        self.model.rotary_emb.forward = lambda *_, **__: (ones, 0 * ones)
        return super().forward(input_ids, attention_mask=mask[None], **options)


class Step35ForCausalLM(_WithOutput, step.Step3p7PreTrainedModel):
    """Step 3.5: the text model of Step 3.7, with an output matrix."""

    config_class = step.Step3p7TextConfig
    text_model = step.Step3p7TextModel


class _Router(ocr.DeepseekOcr2TextTopkRouter):
    def forward(self, hidden_states: Any) -> Any:
        logits, weights, chosen = super().forward(hidden_states)
        return logits, weights / weights.sum(dim=-1, keepdim=True), chosen


class LingForCausalLM(DeepseekForCausalLM):
    """Ling 1: the weights of a token's experts sum to 1."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate = _Router(config)


class _Nothing(nn.Module):
    def forward(self, hidden_states: Any, **_: Any) -> Any:
        return 0 * hidden_states, None


class _Linear(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear_attn = nn.Linear(dim, dim, bias=False)

    def forward(self, hidden_states: Any, **_: Any) -> Any:
        return self.linear_attn(hidden_states), None


class _NoMLP(nn.Module):
    def forward(self, hidden_states: Any) -> Any:
        return 0 * hidden_states


class DeciLMForCausalLM(LlamaForCausalLM):
    """Llama whose layers are built from ``block_configs``."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for i, block in enumerate(config.block_configs):
            layer, own = self.model.layers[i], copy.deepcopy(config)
            group, multiplier = block["attention"]["n_heads_in_group"], block["ffn"]["ffn_mult"]
            if group:
                own.num_key_value_heads = config.num_attention_heads // group
                layer.self_attn = type(layer.self_attn)(own, i)
            elif block["attention"]["replace_with_linear"]:
                layer.self_attn = _Linear(config.hidden_size)
            else:
                layer.self_attn, layer.input_layernorm = _Nothing(), nn.Identity()
            if multiplier:
                own.intermediate_size = -(-int(2 * multiplier * config.hidden_size / 3) // 256) * 256
                layer.mlp = type(layer.mlp)(own)
            else:
                layer.mlp, layer.post_attention_layernorm = _NoMLP(), nn.Identity()
