"""Feed-forward networks: plain MLPs, and MLPs with a gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from hotshoe.nn.basic import Linear
from hotshoe.nn.module import Module, submodule
from hotshoe_core import Tensor, ops

__all__ = ["MLP", "Activation", "GatedMLP", "gated", "plain"]

Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_quick", "relu", "relu_squared", "clamped_swiglu"]

_GATED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "silu": lambda gate, up: ops.swiglu(gate, up),
    "gelu": lambda gate, up: ops.geglu(gate, up, approximate="none"),
    "gelu_tanh": lambda gate, up: ops.geglu(gate, up, approximate="tanh"),
    "gelu_quick": lambda gate, up: ops.geglu(gate, up, approximate="quick"),
    "relu": lambda gate, up: ops.reglu(gate, up),
    "relu_squared": lambda gate, up: gate.relu().sqr() * up,
    "clamped_swiglu": lambda gate, up: ops.clamped_swiglu(gate, up),
}
_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": Tensor.silu,
    "gelu": Tensor.gelu,
    "gelu_tanh": lambda x: x.gelu("tanh"),
    "gelu_quick": lambda x: x.gelu("quick"),
    "relu": Tensor.relu,
    "relu_squared": lambda x: x.relu().sqr(),  # So et al. 2021, arXiv:2109.08668
}


def gated(activation: Activation, gate: Tensor, up: Tensor) -> Tensor:
    """``activation(gate) * up``, elementwise. Source: Shazeer 2020, arXiv:2002.05202."""
    return _GATED[activation](gate, up)


def plain(activation: Activation, x: Tensor) -> Tensor:
    """``activation(x)``, elementwise."""
    return _PLAIN[activation](x)


def _hidden(config: Any, layer: int, factor: int = 1) -> int | None:
    """Return the hidden elements of a layer's MLP; None if unknown: the file does not say, or it is in no layer."""
    return factor * config.mlp_dim[layer] or None if 0 <= layer < config.n_layers else None


def _wide(config: Any, layer: int) -> tuple[int | None, int]:
    return _hidden(config, layer), config.dim


def _narrow(config: Any, layer: int) -> tuple[int, int | None]:
    return config.dim, _hidden(config, layer)


class MLP(Module):
    """``down(activation(up(x)))``: (..., dim) to (..., dim)."""

    activation: ClassVar[Activation] = "gelu"
    up: Linear = submodule("ffn_up", shape=_wide)
    down: Linear = submodule("ffn_down", shape=_narrow)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(plain(self.activation, self.up(x)))


class GatedMLP(Module):
    """``down(activation(gate(x)) * up(x))``: (..., dim) to (..., dim).

    A file may hold the gate and up in one matrix, the rows of the gate first.
    """

    activation: ClassVar[Activation] = "silu"
    gate: Linear = submodule("ffn_gate", shape=_wide)
    up: Linear = submodule("ffn_up", shape=_wide)
    down: Linear = submodule("ffn_down", shape=_narrow)
    gate_up: Linear | None = submodule(
        "ffn_up", instead_of=("gate", "up"), shape=lambda c, i: (_hidden(c, i, 2), c.dim)
    )

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = (self.gate(x), self.up(x)) if self.gate_up is None else self.gate_up(x).chunk(2)
        return self.down(self.product(gate, up))

    def product(self, gate: Tensor, up: Tensor) -> Tensor:
        """The product of the gate and of what it gates, (..., hidden)."""
        return gated(self.activation, gate, up)
