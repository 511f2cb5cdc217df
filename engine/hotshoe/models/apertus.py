"""Apertus (Swiss AI 2025, arXiv:2509.14233): norms on queries and keys, and an MLP with xIELU."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hotshoe import nn
from hotshoe.families import Family
from hotshoe.nn import MLP, TextConfig, derived, layers, submodule, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata

_MAX = 80.0  # exp of a larger number is infinite in float32


def _by_layer(name: str) -> Any:
    """Declare numbers of the layers, from a key without the name of the architecture."""

    def get(metadata: Metadata, found: SimpleNamespace, _: Any) -> tuple[float, ...]:
        values = metadata.per_layer(name, found.n_layers, float)
        for value in values:
            if not abs(value) <= _MAX:
                raise metadata.error(name, f"is {value}; expected {-_MAX} to {_MAX}", "the file is damaged")
        return tuple(values)

    return derived(get)


@dataclass(frozen=True, kw_only=True)
class Config(TextConfig):
    alpha_p: tuple[float, ...] = _by_layer("xielu.alpha_p")
    alpha_n: tuple[float, ...] = _by_layer("xielu.alpha_n")
    beta: tuple[float, ...] = _by_layer("xielu.beta")
    eps: tuple[float, ...] = _by_layer("xielu.eps")


class Attention(nn.NormedAttention):
    rope_factors: Tensor | None = tensor("rope_freqs.weight", use="rope", optional=True, of_model=True)


class XieluMLP(MLP):
    def __call__(self, x: Tensor) -> Tensor:
        """xIELU (Huang & Schlag 2024, arXiv:2411.13010)."""
        cfg, i, x = self.config, self.layer, self.up(x)
        alpha_p, alpha_n = (math.log1p(math.exp(a)) for a in (cfg.alpha_p[i], cfg.alpha_n[i]))
        negative = (x.minimum(cfg.eps[i]).exp() - 1.0 - x) * (cfg.beta[i] + alpha_n)
        return self.down(ops.where(x > 0, x.sqr() * alpha_p, negative) + x * cfg.beta[i])


class Block(nn.TransformerBlock):
    attention: Attention = submodule()
    mlp: XieluMLP = submodule()


class Model(nn.Decoder):
    config: Config
    blocks: list[Block] = layers("blk")


family = Family(Model)
