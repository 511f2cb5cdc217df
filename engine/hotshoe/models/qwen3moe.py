"""Qwen3 with a mixture of experts (arXiv:2505.09388): each token's MLP is a few of many, chosen by a router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hotshoe.models import llama, qwen3
from hotshoe.models.registry import register
from hotshoe.nn import Linear, Module, layers, parameter, part, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.gguf import Metadata


@dataclass(frozen=True, slots=True)
class Config(llama.Config):
    n_experts: int = 0
    n_experts_used: int = 0
    normalize_weights: bool = True

    @classmethod
    def from_metadata(cls, metadata: Metadata, interleaved: bool = False) -> Config:
        base = llama.Config.from_metadata(metadata, interleaved)
        return cls(
            **{name: getattr(base, name) for name in llama.Config.__dataclass_fields__},
            n_experts=metadata.arch.require("expert_count", int),
            n_experts_used=metadata.arch.require("expert_used_count", int),
            normalize_weights=metadata.arch.get("expert_weights_norm", True),
        )


class Experts(Module):
    """One layer's experts, stacked: (n_experts, out, in)."""

    weight: Tensor = parameter("weight", use="linear_experts")

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        return ops.linear_experts(x, self.weight, chosen)  # (n, k, out)


class MLP(Module):
    config: Config
    router: Linear = tensor("ffn_gate_inp")
    gate: Experts = tensor("ffn_gate_exps")
    up: Experts = tensor("ffn_up_exps")
    down: Experts = tensor("ffn_down_exps")

    def __call__(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax()  # (n, n_experts)
        chosen = probabilities.top_k(self.config.n_experts_used)  # (n, k)
        weights = probabilities.take_along(chosen)
        if self.config.normalize_weights:
            weights = weights / weights.sum(keepdims=True)
        x = x[:, None]  # (n, 1, dim): the same for each expert
        y = self.down(ops.swiglu(self.gate(x, chosen), self.up(x, chosen)), chosen)  # (n, k, dim)
        return (weights[:, None] @ y)[:, 0]


class Block(qwen3.Block):
    mlp: MLP = part()


@register("qwen3moe")
class Model(qwen3.Model):
    blocks: list[Block] = layers("blk")

    Config: Any = Config
