"""Mixtures of experts by themselves, against torch: every option, also those that no family here has."""

from __future__ import annotations

import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotshoe import nn
from hotshoe.nn import ExpertLayersConfig, GatedMLP, Linear, MixtureOfExperts, Module, layers, submodule
from hotshoe.nn._choose_forms import choose_forms
from hotshoe.nn.experts import Gating
from hotshoe_core import Tensor, constant
from hotshoe_core.errors import ModelDefinitionError, ModelFileError
from hotshoe_core.gguf import Metadata
from tests.engine.test_models_blocks import compute, fill, values


def router(**changes: Any) -> Any:
    fields = {
        "n_layers": 1,
        "dim": 6,
        "n_experts": 8,
        "n_experts_used": 3,
        "expert_dim": 4,
        "shared_dim": 0,
        "normalize_experts": True,
        "expert_scale": 1.0,
        "n_expert_groups": 1,
        "n_expert_groups_used": 1,
        "gating": "softmax",
    }
    return types.SimpleNamespace(**fields | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"normalize_experts": False, "expert_scale": 2.5},
        {"gating": "softmax_of_chosen"},
        {"gating": "sigmoid_of_chosen", "n_expert_groups": 4, "n_expert_groups_used": 2, "expert_scale": 2.5},
        {"gating": "sigmoid", "expert_scale": 1.5},
        {"gating": "softmax", "n_expert_groups": 4, "n_expert_groups_used": 2, "normalize_experts": False},
        {"gating": "sigmoid", "n_expert_groups": 4, "n_expert_groups_used": 2},
        {"gating": "sqrt_softplus", "expert_scale": 0.0},
        {"shared_dim": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("corrected", [False, True])
def test_routers(changes: dict[str, Any], corrected: bool) -> None:
    """As DeepSeek's own code and gpt-oss's choose and weigh, written down in torch."""
    torch = pytest.importorskip("torch")
    cfg = router(**changes)
    mixture = MixtureOfExperts(cfg)
    choose(mixture)
    shared = {f"ffn_{p}_shexp": values(*s) for p, s in (("gate", (4, 6)), ("up", (4, 6)), ("down", (6, 4)))}
    given = {"exp_probs_b.bias": values(8)} if corrected else {}
    w = fill(mixture, **given, **(shared if cfg.shared_dim else {}))
    x = values(7, 6)
    ours = compute(mixture, x=x)

    t = {name: torch.from_numpy(a) for name, a in w.items()}
    rows = torch.from_numpy(x)
    logits = rows @ t["ffn_gate_inp"].T
    functions = {
        "sigmoid": torch.sigmoid,
        "sqrt_softplus": lambda x: torch.nn.functional.softplus(x).sqrt(),
        "softmax": lambda x: x.softmax(-1),
    }
    name, _, of_chosen = cfg.gating.partition("_of_")
    scores = logits if of_chosen else functions[name](logits)
    choice = scores + t["exp_probs_b.bias"] if corrected else scores
    groups = choice.view(7, cfg.n_expert_groups, -1)
    ranks = groups.topk(2).values.sum(-1) if name == "sigmoid" else groups.max(-1).values
    inside = torch.zeros_like(ranks).scatter_(1, ranks.topk(cfg.n_expert_groups_used).indices, 1).bool()
    choice = groups.masked_fill(~inside[..., None], float("-inf")).view(7, 8)
    chosen = choice.topk(3).indices
    weights = scores.gather(1, chosen)
    if of_chosen:
        weights = functions[name](weights)
    if cfg.normalize_experts:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = weights * (cfg.expert_scale or 1.0)
    expected = torch.zeros(7, 6)
    for n in range(7):
        for weight, e in zip(weights[n], chosen[n], strict=True):
            gate, up, down = (t[f"ffn_{p}_exps"][e] for p in ("gate", "up", "down"))
            expected[n] += weight * (down @ (torch.nn.functional.silu(gate @ rows[n]) * (up @ rows[n])))
    if cfg.shared_dim:
        gate, up, down = (t[f"ffn_{p}_shexp"] for p in ("gate", "up", "down"))
        expected += (torch.nn.functional.silu(rows @ gate.T) * (rows @ up.T)) @ down.T
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-4, atol=1e-4)


def choose(mixture: MixtureOfExperts, together: bool = False) -> None:
    """As ``bind`` does for a file with gate and up in one tensor, or in two."""
    parts = ("gate_up", "down") if together else ("gate", "up", "down")
    shared = [f"ffn_{part}_shexp.weight" for part in ("gate", "up", "down")]
    shapes = {p.names[0]: tuple(n or 0 for n in p.shape or ()) for p in mixture.parameters()}
    choose_forms(mixture, {name: shapes.get(name, ()) for name in (*shared, *(f"ffn_{p}_exps.weight" for p in parts))})


def expected_of_one(x: Any, w: Any, weights: Any, chosen: Any, hidden: Any) -> Any:
    """What the chosen experts of each row give, one after the other. ``hidden(expert, row)`` is what ``down`` reads."""
    y = np.zeros((len(x), w["ffn_down_exps"].shape[1]), np.float32)
    for n, (row, ws, experts) in enumerate(zip(x, weights, chosen, strict=True)):
        for weight, e in zip(ws, experts, strict=True):
            y[n] += weight * (w["ffn_down_exps"][e] @ hidden(e, row) + w.get("ffn_down_exps.bias", np.zeros(8))[e])
    return y


class Plain(MixtureOfExperts):
    """Experts without a gate, in fewer elements than the model's."""

    activation = "relu"
    gate = gate_up = None
    up: nn.Experts = submodule("ffn_up_exps", shape=lambda c, i: (c.n_experts, c.expert_dim, 3))
    down: nn.Experts = submodule("ffn_down_exps", shape=lambda c, i: (c.n_experts, 3, c.expert_dim))
    latent_in: Linear = submodule("ffn_latent_down", shape=lambda c, i: (3, c.dim))
    latent_out: Linear = submodule("ffn_latent_up", shape=lambda c, i: (c.dim, 3))


def test_experts_without_a_gate_in_a_latent_space() -> None:
    mixture = Plain(router())
    w = fill(mixture)
    assert "ffn_gate_exps" not in w
    x = values(7, 6)
    y, weights, chosen = compute(lambda x: (mixture(x), *mixture.route(x)), x=x)
    latent = x @ w["ffn_latent_down"].T
    inner = expected_of_one(latent, w, weights, chosen, lambda e, row: np.maximum(w["ffn_up_exps"][e] @ row, 0))
    np.testing.assert_allclose(y, inner @ w["ffn_latent_up"].T, rtol=1e-4, atol=1e-4)


class Biased(MixtureOfExperts):
    """Experts with the activation of gpt-oss."""

    activation = "clamped_swiglu"


@pytest.mark.parametrize("together", [False, True])
def test_biases_of_experts_and_another_activation(together: bool) -> None:
    mixture = Biased(router())
    shapes = {p.names[0]: p.shape for p in mixture.parameters()}
    assert shapes["ffn_up_exps.bias"] == (8, 4)
    assert shapes["ffn_down_exps.bias"] == (8, 6)
    assert shapes["ffn_gate_inp.bias"] == (8,)
    biases = {f"ffn_{name}_exps.bias": values(8, n) for name, n in (("gate", 4), ("up", 4), ("down", 6))}
    w = fill(mixture, **biases)
    if together:
        for kind in ("weight", "bias"):
            both = [w[f"ffn_{n}_exps{'.bias' if kind == 'bias' else ''}"] for n in ("gate", "up")]
            setattr(mixture.gate_up, kind, constant(np.concatenate(both, axis=1)))
    choose(mixture, together)
    x = values(7, 6)
    y, weights, chosen = compute(lambda x: (mixture(x), *mixture.route(x)), x=x)

    def hidden(e: int, row: Any) -> Any:
        gate, up = (w[f"ffn_{n}_exps"][e] @ row + w[f"ffn_{n}_exps.bias"][e] for n in ("gate", "up"))
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return gate / (1 + np.exp(-1.702 * gate)) * (up + 1)

    np.testing.assert_allclose(y, expected_of_one(x, w, weights, chosen, hidden), rtol=1e-4, atol=1e-4)


class Before(MixtureOfExperts):
    """The weight multiplies the input of an expert, as in Llama 4."""

    def combine(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return self.down(self.hidden(x[:, None] * weights[..., None], chosen), chosen).sum(axis=1)


def test_weights_before_the_experts() -> None:
    mixture = Before(router())
    choose(mixture)
    w = fill(mixture)
    x = values(7, 6)
    y, weights, chosen = compute(lambda x: (mixture(x), *mixture.route(x)), x=x)
    expected = np.zeros_like(x)
    for n in range(7):
        for weight, e in zip(weights[n], chosen[n], strict=True):
            gate, up = w["ffn_gate_exps"][e] @ (weight * x[n]), w["ffn_up_exps"][e] @ (weight * x[n])
            expected[n] += w["ffn_down_exps"][e] @ (gate / (1 + np.exp(-gate)) * up)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


class Weighted(MixtureOfExperts):
    shared: nn.GatedSharedExperts = submodule()


def test_shared_experts_with_a_weight_for_each_token() -> None:
    plain, weighted = MixtureOfExperts(router(shared_dim=5)), Weighted(router(shared_dim=5))
    assert plain.shared is not None
    other = plain.shared
    choose(plain)
    choose(weighted)
    w = fill(plain)
    fill(weighted, **w, ffn_gate_inp_shexp=(gate := values(6)))
    x = values(7, 6)
    y, shared, without = compute(lambda x: (weighted(x), other(x), plain(x) - other(x)), x=x)
    np.testing.assert_allclose(y, without + shared / (1 + np.exp(-x @ gate))[:, None], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("gating", ["sigmoid", "sqrt_softplus"])
def test_scores_that_are_all_tiny_give_numbers(gating: str) -> None:
    """llama.cpp divides by 2⁻¹⁴ at least; a sum of 0 gave weights that are not numbers."""
    mixture = MixtureOfExperts(router(gating=gating))
    fill(mixture, ffn_gate_inp=np.full((8, 6), -50.0))
    weights, _ = compute(mixture.route, x=np.ones((2, 6), np.float32))
    np.testing.assert_allclose(weights, 0, atol=1e-6)


# Which layers have experts


class Block(Module):
    mlp: GatedMLP | MixtureOfExperts = submodule(choose=nn.dense_or_experts)


class Model(Module):
    config: ExpertLayersConfig
    blocks: list[Block] = layers("blk")


KEYS: dict[str, Any] = {
    "block_count": 5,
    "embedding_length": 6,
    "context_length": 9,
    "attention.head_count": 1,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "feed_forward_length": 7,
    "expert_feed_forward_length": 4,
    "expert_count": 8,
    "expert_used_count": 2,
}


def config(kind: Any = ExpertLayersConfig, **more: Any) -> Any:
    values = {f"a.{k}": v for k, v in (KEYS | more).items()} | {"general.architecture": "a"}
    return kind.from_metadata(Metadata(values, {}, Path("a.gguf")))


@pytest.mark.parametrize(
    ("changes", "with_experts"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"leading_dense_block_count": 2}, [2, 3, 4]),
        ({"interleave_moe_layer_step": 2}, [1, 3]),
        ({"interleave_moe_layer_step": 2, "leading_dense_block_count": 2}, [3]),
        ({"leading_dense_block_count": 9}, []),
    ],
    ids=str,
)
def test_layers_with_experts(changes: dict[str, Any], with_experts: list[int]) -> None:
    model = Model(config(**changes))
    assert [i for i, block in enumerate(model.blocks) if isinstance(block.mlp, MixtureOfExperts)] == with_experts
    assert {type(block.mlp) for i, block in enumerate(model.blocks) if i not in with_experts} <= {GatedMLP}
    names = {p.names[0] for p in model.parameters()}
    assert ("blk.1.ffn_up.weight" in names) != ("blk.1.ffn_up_exps.weight" in names)


def test_a_choice_that_is_no_module_is_reported() -> None:
    class Wrong(Module):
        mlp: GatedMLP | MixtureOfExperts = submodule(choose=lambda c, i: 3)  # type: ignore[arg-type,return-value]

    with pytest.raises(ModelDefinitionError, match="choose returned 3"):
        Wrong(config())


# The config


def test_shared_experts_by_their_size_or_by_their_number() -> None:
    assert config().shared_dim == 0
    assert config(expert_shared_count=3).shared_dim == 12
    assert config(expert_shared_feed_forward_length=5).shared_dim == 5
    assert config(expert_shared_count=1, expert_shared_feed_forward_length=9).shared_dim == 9


def test_each_architecture_has_its_own_default_of_the_gating() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Sigmoid(nn.ExpertConfig):
        gating: Gating = nn.gating_key("sigmoid")

    assert config().gating == "softmax"
    assert config(Sigmoid).gating == "sigmoid"
    assert config(Sigmoid, expert_gating_func=0).gating == "sigmoid"
    assert config(Sigmoid, expert_gating_func=1).gating == "softmax"
    assert config(Sigmoid, expert_gating_func=4).gating == "sqrt_softplus"
    with pytest.raises(ModelFileError, match=r"expert_gating_func.*is 5.*1 \(softmax\)"):
        config(Sigmoid, expert_gating_func=5)
