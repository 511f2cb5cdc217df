"""Nomic Embed 2 in torch: transformers has only version 1. llama.cpp, on the same file, is the second oracle."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import NomicBertModel

__all__ = ["NomicMoeModel"]


class _Experts(nn.Module):
    def __init__(self, n: int, ff: int, dim: int) -> None:
        super().__init__()
        self.n = n
        self.w1, self.w2 = nn.Parameter(torch.zeros(n * ff, dim)), nn.Parameter(torch.zeros(n * ff, dim))

    def forward(self, x: Any, weights: Any) -> Any:
        w1, w2 = (w.reshape(self.n, -1, x.shape[-1]) for w in (self.w1, self.w2))
        hidden = nn.functional.gelu(torch.einsum("bnd,efd->bnef", x, w1))
        return torch.einsum("bnef,efd,bne->bnd", hidden, w2, weights)


class _Mixture(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        n, dim = config.num_experts, config.hidden_size
        self.k = config.moe_top_k
        self.router = nn.ModuleDict({"layer": nn.Linear(dim, n, bias=False)})
        self.experts = nn.ModuleDict({"mlp": _Experts(n, config.intermediate_size, dim)})

    def forward(self, x: Any) -> Any:
        scores = self.router["layer"](x).softmax(-1)
        least = scores.topk(self.k).values[..., -1:]
        return self.experts["mlp"](x, scores * (scores >= least))


class _Dense(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Any) -> Any:
        return self.down_proj(nn.functional.gelu(self.up_proj(x)))


class NomicMoeModel(NomicBertModel):
    """Version 1 with biases, and with experts in every second layer."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for i, layer in enumerate(self.layers):
            layer.mlp = _Mixture(config) if i % config.moe_every_n_layers == 1 else _Dense(config)
            for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
                old = getattr(layer.self_attn, name)
                setattr(layer.self_attn, name, nn.Linear(old.in_features, old.out_features))
