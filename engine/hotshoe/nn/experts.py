"""Mixtures of experts: each token's MLP is a few of many, chosen by a router."""

from __future__ import annotations

from typing import ClassVar

from hotshoe.nn.layers import Linear
from hotshoe.nn.mlp import Activation, gated
from hotshoe.nn.module import Module, parameter, tensor
from hotshoe_core import Tensor, ops

__all__ = ["Experts", "MixtureOfExperts"]


class Experts(Module):
    """One matrix of each of a layer's experts, stacked: (n_experts, out, in)."""

    weight: Tensor = parameter("weight", use="linear_experts")

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """x (n, 1 or k, in) and the experts chosen for each row, (n, k), to (n, k, out)."""
        return ops.linear_experts(x, self.weight, chosen)


class MixtureOfExperts(Module):
    """Gated MLPs of which each token takes ``config.n_experts_used`` of ``config.n_experts``: (n, dim) to the same.

    Probabilities are the softmax over all experts; ``config.normalize_experts``: those of the chosen sum to 1.
    """

    activation: ClassVar[Activation] = "silu"
    router: Linear = tensor("ffn_gate_inp", shape=lambda c, i: (c.n_experts, c.dim))
    gate: Experts = tensor("ffn_gate_exps", shape=lambda c, i: (c.n_experts, c.expert_dim, c.dim))
    up: Experts = tensor("ffn_up_exps", shape=lambda c, i: (c.n_experts, c.expert_dim, c.dim))
    down: Experts = tensor("ffn_down_exps", shape=lambda c, i: (c.n_experts, c.dim, c.expert_dim))

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        x = x[:, None]  # (n, 1, dim): the same for each expert
        hidden = gated(self.activation, self.gate(x, chosen), self.up(x, chosen))  # (n, k, hidden)
        return (weights[:, None] @ self.down(hidden, chosen))[:, 0]

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of each row's experts, and which they are: both (n, k)."""
        probabilities = self.router(x).softmax()  # (n, n_experts)
        chosen = probabilities.top_k(self.config.n_experts_used)
        weights = probabilities.take_along(chosen)
        if self.config.normalize_experts:
            weights = weights / weights.sum(keepdims=True)
        return weights, chosen
