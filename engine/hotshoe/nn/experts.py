"""Mixtures of experts: a router chooses a few of many MLPs for each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from hotshoe.nn.basic import Linear
from hotshoe.nn.config import TextConfig, derived, key
from hotshoe.nn.decoder import TransformerBlock
from hotshoe.nn.mlp import Activation, GatedMLP, gated, plain
from hotshoe.nn.module import Module, submodule, tensor
from hotshoe_core import Tensor, ops
from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf import Metadata

__all__ = [
    "ExpertBlock",
    "ExpertConfig",
    "ExpertLayersConfig",
    "Experts",
    "GatedSharedExperts",
    "Gating",
    "MixtureOfExperts",
    "SharedExperts",
    "SigmoidExpertsConfig",
    "dense_or_experts",
    "gating_key",
]

Gating = Literal["softmax", "sigmoid", "softmax_of_chosen", "sqrt_softplus", "sigmoid_of_chosen"]
_GATING: dict[int, Gating] = {1: "softmax", 2: "sigmoid", 3: "softmax_of_chosen", 4: "sqrt_softplus"}
_LOWEST_SUM = 2.0**-14  # of the weights of the chosen experts, as in llama.cpp: no division by 0
_PENALTY = 1e6  # far larger than any score plus correction


def gating_key(default: Gating = "softmax") -> Any:
    """Declare the field ``gating``: how the router's logits become scores.

    default: the architecture's way, if the file does not say.
    """

    return derived(lambda metadata, _, __: read_gating(metadata, default))


def read_gating(metadata: Metadata, default: Gating) -> Gating:
    """Read how the router's logits become scores. Raises ModelFileError for an unknown number."""
    number = metadata.arch.get("expert_gating_func", 0)
    if number and number not in _GATING:
        known = ", ".join(f"{n} ({name})" for n, name in _GATING.items())
        raise metadata.arch.error("expert_gating_func", f"is {number}; expected {known}")
    return _GATING.get(number, default)


@dataclass(frozen=True, kw_only=True)  # without slots, so that a Config of a family can be a base next to it
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
    shared_dim: int = key("expert_shared_feed_forward_length", default=lambda c: c.n_shared_experts * c.expert_dim)
    """Hidden elements of all shared experts together; 0 without shared experts."""
    normalize_experts: bool = key("expert_weights_norm", default=True)
    """True if the weights of the chosen experts are scaled to sum to 1."""
    expert_scale: float = key("expert_weights_scale", default=1.0)
    """A factor of all experts' weights, applied last. 0 means 1, as in llama.cpp."""
    n_expert_groups: int = key("expert_group_count", default=1, minimum=1)
    """Groups of equal size that the experts are divided into."""
    n_expert_groups_used: int = key("expert_group_used_count", default=lambda c: c.n_expert_groups, minimum=1)
    """A token chooses its experts from this many best groups."""
    gating: Gating = gating_key()  # noqa: RUF009
    """How the router's logits become scores."""

    def __post_init__(self) -> None:
        for what, n, total in (
            ("experts", self.n_experts_used, self.n_experts),
            ("groups of experts", self.n_expert_groups_used, self.n_expert_groups),
        ):
            if not (least := min(1, total)) <= n <= total:
                raise ModelFileError(
                    f"the metadata says that {n} of {total} {what} are used; expected {least} to {total}"
                )
        if self.n_experts % self.n_expert_groups:
            raise ModelFileError(f"{self.n_experts} experts do not divide into {self.n_expert_groups} equal groups")


@dataclass(frozen=True, kw_only=True)
class ExpertLayersConfig(ExpertConfig):
    """The config of text models in which only some layers have experts. The others have a dense MLP."""

    n_experts: int = key("expert_count", default=0)
    n_experts_used: int = key("expert_used_count", default=0)
    n_dense: int = key("leading_dense_block_count", default=0)
    """The first layers, which have no experts."""
    expert_step: int = key("interleave_moe_layer_step", default=1, minimum=1)
    """Every n-th layer has experts."""

    def has_experts(self, layer: int) -> bool:
        return self.n_experts > 0 and layer >= self.n_dense and (layer + 1) % self.expert_step == 0


@dataclass(frozen=True, kw_only=True)
class SigmoidExpertsConfig(ExpertLayersConfig):
    """An ExpertLayersConfig whose scores are sigmoids, not scaled to sum to 1, unless the file says otherwise."""

    normalize_experts: bool = key("expert_weights_norm", default=False)
    gating: Gating = gating_key("sigmoid")  # noqa: RUF009


class Experts(Module):
    """One matrix for each expert of a layer, stacked: (n_experts, out, in). Biases are (n_experts, out)."""

    weight: Tensor = tensor("weight", use="linear_experts")
    scale: Tensor | None = tensor("scale", use="take", optional=True, shape=lambda c, i: (c.n_experts,))
    """A factor of each expert's matrix."""
    bias: Tensor | None = tensor("bias", use="add_experts", optional=True)

    def __call__(self, x: Tensor, chosen: Tensor) -> Tensor:
        """``x`` (n, 1 or k, in), and the indices of the experts of each row, (n, k), to (n, k, out)."""
        y = ops.linear_experts(x, self.weight, chosen)
        if self.scale is not None:
            y = y * self.scale.reshape(-1, 1).take(chosen)
        return y if self.bias is None else ops.add_experts(y, self.bias, chosen)


class SharedExperts(GatedMLP):
    """An MLP that computes every token, in addition to the chosen experts."""

    gate: Linear = submodule("ffn_gate_shexp", shape=lambda c, i: (c.shared_dim, c.dim))
    up: Linear = submodule("ffn_up_shexp", shape=lambda c, i: (c.shared_dim, c.dim))
    down: Linear = submodule("ffn_down_shexp", shape=lambda c, i: (c.dim, c.shared_dim))
    gate_up = None


class GatedSharedExperts(SharedExperts):
    """Shared experts with a weight of their own for each token, a sigmoid, as in Qwen2-MoE (arXiv:2407.10671)."""

    router: Tensor = tensor("ffn_gate_inp_shexp.weight", use="mul", shape=lambda c, i: (1, c.dim))

    def __call__(self, x: Tensor) -> Tensor:
        weight = (x * self.router).sum(keepdims=True).sigmoid()  # (n, 1)
        return weight * super().__call__(x)


class MixtureOfExperts(Module):
    """MLPs, ``config.n_experts_used`` of ``config.n_experts`` for each token: (n, dim) to (n, dim).

    A subclass declares what differs: ``gate = gate_up = None`` for experts without a gate, another class of ``shared``
    experts, ``latent_in`` and ``latent_out``. It overrides ``route`` for another choice of experts, and ``combine`` for
    another use of the weights. A file may hold the matrices of gate and up as one, the rows of the gate first.
    """

    config: ExpertConfig
    activation: ClassVar[Activation] = "silu"
    router: Linear = submodule("ffn_gate_inp", shape=lambda c, i: (c.n_experts, c.dim))
    correction: Tensor | None = tensor("exp_probs_b.bias", use="add", optional=True, shape=lambda c, i: (c.n_experts,))
    """Added to the scores when experts are chosen, but not to their weights (Wang et al. 2024, arXiv:2408.15664)."""
    gate: Experts | None = submodule("ffn_gate_exps", shape=lambda c, i: (c.n_experts, c.expert_dim, c.dim))
    up: Experts = submodule("ffn_up_exps", shape=lambda c, i: (c.n_experts, c.expert_dim, c.dim))
    gate_up: Experts | None = submodule(
        "ffn_gate_up_exps", instead_of=("gate", "up"), shape=lambda c, i: (c.n_experts, 2 * c.expert_dim, c.dim)
    )
    down: Experts = submodule("ffn_down_exps", shape=lambda c, i: (c.n_experts, c.dim, c.expert_dim))
    shared: SharedExperts | None = submodule(when=lambda c, i: c.shared_dim > 0)
    latent_in: Linear | None = None
    """The matrix before the chosen experts, if these have fewer inputs and outputs than the model has elements."""
    latent_out: Linear | None = None
    """The matrix after the chosen experts."""

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = self.route(x)
        y = x if self.latent_in is None else self.latent_in(x)
        y = self.combine(y, weights, chosen)
        y = y if self.latent_out is None else self.latent_out(y)
        return y if self.shared is None else y + self.shared(x)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and the indices of the experts of each row, both (n, k), from hidden states (n, dim)."""
        cfg = self.config
        of_chosen = cfg.gating.endswith("of_chosen")
        logits = self.router(x)  # (n, n_experts)
        scores = logits if of_chosen else _scores(logits, cfg.gating)
        choice = scores if self.correction is None else scores + self.correction
        if cfg.n_expert_groups_used < cfg.n_expert_groups:
            choice = self._exclude_other_groups(choice)
        chosen = choice.top_k(cfg.n_experts_used)
        weights = scores.take_along(chosen)
        if of_chosen:
            weights = _scores(weights, cfg.gating)
        if cfg.normalize_experts and cfg.gating != "softmax_of_chosen":
            total = weights.sum(keepdims=True)
            # a softmax's largest scores are never that small
            weights = weights / (total if cfg.gating == "softmax" else total.clamp(min=_LOWEST_SUM))
        return self._scaled(weights), chosen

    def combine(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The weighted sum of the results of the chosen experts: (n, in) to (n, out)."""
        hidden = self.hidden(x[:, None], chosen)  # the experts of a token have the same input
        return (weights[:, None] @ self.down(hidden, chosen))[:, 0]

    def hidden(self, rows: Tensor, chosen: Tensor) -> Tensor:
        """The hidden elements of the chosen experts: (n, 1 or k, in) to (n, k, expert_dim)."""
        if self.gate_up is not None:
            return self.product(*self.gate_up(rows, chosen).chunk(2))
        if self.gate is None:
            return plain(self.activation, self.up(rows, chosen))
        return self.product(self.gate(rows, chosen), self.up(rows, chosen))

    def product(self, gate: Tensor, up: Tensor) -> Tensor:
        """The product of the gate and of what it gates, (n, k, expert_dim)."""
        return gated(self.activation, gate, up)

    def _scaled(self, weights: Tensor) -> Tensor:
        return weights if self.config.expert_scale in (0.0, 1.0) else weights * self.config.expert_scale

    def _exclude_other_groups(self, choice: Tensor) -> Tensor:
        """Lower the scores of all groups except the best ones, so that their experts are never chosen. (n, n_experts).

        DeepSeek-V2 (arXiv:2405.04434) ranks a group by its best expert. V3 (arXiv:2412.19437), which uses sigmoid
        scores, ranks it by the sum of its best two.
        """
        cfg = self.config
        groups = choice.reshape(-1, cfg.n_expert_groups, cfg.n_experts // cfg.n_expert_groups)
        best = groups.top_k(1 if cfg.gating == "softmax" else 2)
        ranks = groups.take_along(best).sum()  # (n, groups)
        lowest = ranks.take_along(ranks.top_k(cfg.n_expert_groups_used))[:, -1:]  # rank of the last group that is used
        return (groups - (ranks < lowest)[..., None] * _PENALTY).reshape(*choice.shape)


def dense_or_experts(config: Any, layer: int) -> type[Module]:
    """Pick the MLP of a layer of a model whose config is an ExpertLayersConfig.

    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)
    """
    return MixtureOfExperts if config.has_experts(layer) else GatedMLP


class ExpertBlock(TransformerBlock):
    """A TransformerBlock with experts in the layers that ``config.has_experts`` names, and a gated MLP in the others.

    The config is an ExpertLayersConfig. A subclass declares ``attention``.
    """

    mlp: GatedMLP | MixtureOfExperts = submodule(choose=dense_or_experts)


def _scores(logits: Tensor, gating: Gating) -> Tensor:
    if gating == "sqrt_softplus":
        return logits.softplus().sqrt()
    return logits.sigmoid() if gating.startswith("sigmoid") else logits.softmax()
