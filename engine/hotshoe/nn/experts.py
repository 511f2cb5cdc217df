"""Mixtures of experts: a router chooses a few of many MLPs for each token."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from hotshoe.nn.basic import Linear
from hotshoe.nn.config import TextConfig, derived, key
from hotshoe.nn.mlp import Activation, GatedMLP, gated
from hotshoe.nn.module import Module, submodule, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf import Metadata

__all__ = ["ExpertConfig", "Experts", "MixtureOfExperts", "SharedExperts"]

Gating = Literal["softmax", "sigmoid", "softmax_of_chosen"]
_GATING: dict[int, Gating] = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen"}


def _gating(metadata: Metadata, _: SimpleNamespace, __: Any) -> Gating:
    number = metadata.arch.get("expert_gating_func", 1)
    if number not in _GATING:
        raise metadata.arch.error(
            "expert_gating_func", f"is {number}; expected 1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen experts)"
        )
    return _GATING[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConfig(TextConfig):
    """The config of text models with experts.

    Raises ModelFileError if a count is larger than the number of experts or groups, or if groups differ in size.
    """

    n_experts: int = key("expert_count", minimum=1)
    n_experts_used: int = key("expert_used_count", minimum=1)
    """Experts that compute one token."""
    expert_dim: int = key("expert_feed_forward_length", minimum=1)
    """Hidden elements of one expert."""
    n_shared_experts: int = key("expert_shared_count", default=0)
    """Experts that compute every token, in addition to the chosen ones."""
    normalize_experts: bool = key("expert_weights_norm", default=True)
    """True if the weights of the chosen experts are scaled to sum to 1."""
    expert_scale: float = key("expert_weights_scale", default=1.0)
    """A factor of all experts' weights, applied last."""
    n_expert_groups: int = key("expert_group_count", default=1, minimum=1)
    """Groups of equal size that the experts are divided into."""
    n_expert_groups_used: int = key("expert_group_used_count", default=lambda c: c.n_expert_groups, minimum=1)
    """A token chooses its experts from this many best groups."""
    gating: Gating = derived(_gating)  # noqa: RUF009
    """How the router's logits become scores."""

    def __post_init__(self) -> None:
        for what, n, total in (
            ("experts", self.n_experts_used, self.n_experts),
            ("groups of experts", self.n_expert_groups_used, self.n_expert_groups),
        ):
            if n > total:
                raise ModelFileError(f"the metadata says that {n} {what} are used, but there are only {total}")
        if self.n_experts % self.n_expert_groups:
            raise ModelFileError(f"{self.n_experts} experts do not divide into {self.n_expert_groups} equal groups")


class Experts(Module):
    """One matrix for each expert of a layer, stacked: (n_experts, out, in)."""

    weight: Tensor = tensor("weight", use="linear_experts")
    scale: Tensor | None = tensor("scale", use="take", optional=True, shape=lambda c, i: (c.n_experts,))
    """A factor of each expert's matrix."""

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """``x`` (n, 1 or k, in), and the indices of the experts of each row, (n, k), to (n, k, out)."""
        y = ops.linear_experts(x, self.weight, chosen)
        return y if self.scale is None else y * self.scale.reshape(-1, 1).take(chosen)


class SharedExperts(GatedMLP):
    """An MLP that computes every token, in addition to the chosen experts."""

    gate: Linear = submodule("ffn_gate_shexp", shape=lambda c, i: (c.n_shared_experts * c.expert_dim, c.dim))
    up: Linear = submodule("ffn_up_shexp", shape=lambda c, i: (c.n_shared_experts * c.expert_dim, c.dim))
    down: Linear = submodule("ffn_down_shexp", shape=lambda c, i: (c.dim, c.n_shared_experts * c.expert_dim))


class MixtureOfExperts(Module):
    """Gated MLPs, ``config.n_experts_used`` of ``config.n_experts`` for each token: (n, dim) to (n, dim)."""

    config: ExpertConfig
    activation: ClassVar[Activation] = "silu"
    router: Linear = submodule("ffn_gate_inp", shape=lambda c, i: (c.n_experts, c.dim))
    correction: Tensor | None = tensor("exp_probs_b.bias", use="add", optional=True, shape=lambda c, i: (c.n_experts,))
    """Added to the scores when experts are chosen, but not to their weights (Wang et al. 2024, arXiv:2408.15664)."""
    gate: Experts = submodule("ffn_gate_exps", shape=lambda c, i: (c.n_experts, c.expert_dim, c.dim))
    up: Experts = submodule("ffn_up_exps", shape=lambda c, i: (c.n_experts, c.expert_dim, c.dim))
    down: Experts = submodule("ffn_down_exps", shape=lambda c, i: (c.n_experts, c.dim, c.expert_dim))
    shared: SharedExperts | None = submodule(when=lambda c, i: c.n_shared_experts > 0)

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        rows = x[:, None]  # (n, 1, dim): all experts of a token get the same input
        hidden = gated(self.activation, self.gate(rows, chosen), self.up(rows, chosen))  # (n, k, expert_dim)
        y = (weights[:, None] @ self.down(hidden, chosen))[:, 0]
        return y if self.shared is None else y + self.shared(x)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the indices of the experts of each row, both (n, k), from hidden states (n, dim)."""
        cfg = self.config
        logits = self.router(x)  # (n, n_experts)
        if cfg.gating == "softmax_of_chosen":
            chosen = logits.top_k(cfg.n_experts_used)
            return logits.take_along(chosen).softmax() * cfg.expert_scale, chosen
        scores = logits.sigmoid() if cfg.gating == "sigmoid" else logits.softmax()
        choice = scores if self.correction is None else scores + self.correction
        if cfg.n_expert_groups_used < cfg.n_expert_groups:
            choice = self._exclude_other_groups(choice)
        chosen = choice.top_k(cfg.n_experts_used)
        weights = scores.take_along(chosen)
        if cfg.normalize_experts:
            weights = weights / weights.sum(keepdims=True)
        return (weights if cfg.expert_scale == 1.0 else weights * cfg.expert_scale), chosen

    def _exclude_other_groups(self, choice: Tensor) -> Tensor:
        """Lower the scores of all groups except the best ones, so that their experts are never chosen. (n, n_experts).

        DeepSeek-V2 (arXiv:2405.04434) ranks a group by its best expert. V3 (arXiv:2412.19437), which uses sigmoid
        scores, ranks it by the sum of its best two.
        """
        cfg = self.config
        groups = choice.reshape(-1, cfg.n_expert_groups, cfg.n_experts // cfg.n_expert_groups)
        best = groups.top_k(2 if cfg.gating == "sigmoid" else 1)
        ranks = groups.take_along(best).sum()  # (n, groups)
        lowest = ranks.take_along(ranks.top_k(cfg.n_expert_groups_used))[:, -1:]  # rank of the last group that is used
        return ops.where((ranks >= lowest)[..., None], groups, groups - _PENALTY).reshape(*choice.shape)


_PENALTY = 1e6  # far larger than any score plus correction
