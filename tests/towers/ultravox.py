"""Ultravox for the table: transformers' Whisper and Llama, and the projector as llama.cpp's test of rows confirms it.

transformers has no class for it. The published code (fixie-ai/ultravox) keeps the text model in a folder of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedConfig, PreTrainedModel, WhisperConfig
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

__all__ = ["UltravoxModel"]


class UltravoxConfig(PreTrainedConfig):
    model_type = "ultravox"
    sub_configs = {"text_config": LlamaConfig, "audio_config": WhisperConfig}  # noqa: RUF012
    text_config: Any = None
    audio_config: Any = None
    audio_token_id: int = 0
    stack_factor: int = 8
    hidden_size: int = 96
    projector_act: str = "swiglu"
    projector_ln_mid: bool = True

    def __post_init__(self, **given: Any) -> None:
        if isinstance(self.text_config, dict):
            self.text_config = LlamaConfig(**self.text_config)
        if isinstance(self.audio_config, dict):
            self.audio_config = WhisperConfig(**self.audio_config)
        super().__post_init__(**given)


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.rms_norm(x, self.weight.shape, self.weight, 1e-6)


class _Projector(nn.Module):
    def __init__(self, config: UltravoxConfig) -> None:
        super().__init__()
        wide = config.audio_config.d_model * config.stack_factor
        self.stack = config.stack_factor
        self.ln_pre = _Norm(wide)
        self.linear_1 = nn.Linear(wide, config.hidden_size, bias=False)
        self.ln_mid = _Norm(config.hidden_size // 2)
        self.linear_2 = nn.Linear(config.hidden_size // 2, config.text_config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % self.stack))
        value, gate = self.linear_1(self.ln_pre(x.reshape(x.shape[0], -1, x.shape[2] * self.stack))).chunk(2, dim=-1)
        projected: torch.Tensor = self.linear_2(self.ln_mid(nn.functional.silu(gate) * value))
        return projected


class _Encoder(WhisperEncoder):
    """Whisper's encoder, for sounds of any length."""

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(self.conv1(input_features))
        x = nn.functional.gelu(self.conv2(x)).permute(0, 2, 1)
        x = x + self.embed_positions.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x, None)
            x = x[0] if isinstance(x, tuple) else x
        normed: torch.Tensor = self.layer_norm(x)
        return normed


class UltravoxModel(PreTrainedModel):
    config_class = UltravoxConfig
    _supports_sdpa = True

    def __init__(self, config: UltravoxConfig) -> None:
        super().__init__(config)
        self.audio_tower = _Encoder(config.audio_config)
        self.multi_modal_projector = _Projector(config)
        self.language_model = LlamaForCausalLM(config.text_config)
        self.post_init()

    def rows(self, features: list[torch.Tensor]) -> torch.Tensor:
        """features: of each window (1, n_mels, frames)."""
        return torch.cat([self.multi_modal_projector(self.audio_tower(f))[0] for f in features])

    def forward(self, input_ids: torch.Tensor, input_features: list[torch.Tensor] | None = None) -> Any:
        embeds = self.language_model.get_input_embeddings()(input_ids)
        if input_features is not None:
            mask = (input_ids == self.config.audio_token_id)[..., None].expand_as(embeds)
            embeds = embeds.masked_scatter(mask, self.rows(input_features))
        return self.language_model(inputs_embeds=embeds)
