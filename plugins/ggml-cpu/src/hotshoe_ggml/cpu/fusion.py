"""Fusion: a product of our own takes in the bias, activation and residual that follow it, or its gate's product.

Each of them alone reads and writes the whole result once more; in the product's epilogue they are free. It is done
only where nobody else reads the values between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.tensor import Tensor

__all__ = ["Fused", "fuse", "operands"]


class Fused(NamedTuple):
    """``activation(x @ weight.T + bias) + residual``, of which ``linear`` is the first node.

    With a gate, the product of x with another weight: ``activation(gate) * (x @ weight.T)``. ``linear`` and the gate
    may be the ``linear_experts`` of one choice, without bias and residual.
    """

    linear: Tensor
    bias: Tensor | None = None
    activation: str = "none"
    residual: Tensor | None = None
    gate: Tensor | None = None


def fuse(
    graph: Graph, is_own: Callable[[Tensor], bool], is_pair: Callable[[Tensor, Tensor], bool]
) -> tuple[dict[Tensor, Fused], set[Tensor]]:
    """What to build in place of the last node of each pattern, and the nodes that vanish into them.

    is_own: whether a ``linear`` or ``linear_experts`` is a product of ours; is_pair: whether one such may be the gate
    of another.
    """
    only_reader = _only_readers(graph)
    fused: dict[Tensor, Fused] = {}
    vanished: set[Tensor] = set()
    for node in graph.nodes:
        activation = _activation_of_gate(node)
        if activation is not None:
            gate, up = operands(node)
            if all(fused.get(t) == Fused(t) and only_reader.get(t) is node for t in (gate, up)) and is_pair(gate, up):
                vanished |= {gate, up}
                fused[node] = Fused(up, activation=activation, gate=gate)
        if node.op not in ("linear", "linear_experts") or not is_own(node):
            continue
        found, last = Fused(node), node
        if node.op == "linear_experts":
            fused[node] = found
            continue
        reader = only_reader.get(last)
        if reader is not None and _is_bias(_other(reader, last), node):
            vanished.add(last)
            found, last = found._replace(bias=_other(reader, last)), reader
            reader = only_reader.get(last)
        if reader is not None and reader.op == "gelu" and reader.attrs["approximate"] == "none":
            vanished.add(last)
            found, last = found._replace(activation="gelu"), reader
            reader = only_reader.get(last)
        if reader is not None and reader not in fused:
            other = _other(reader, last)
            if other is not None and other.shape == node.shape and other is not last:
                vanished.add(last)
                found, last = found._replace(residual=other), reader
        fused[last] = found
    return fused, vanished


def operands(node: Tensor) -> tuple[Tensor, Tensor]:
    """Those of a product: x and the weight; or of a gate and what it multiplies."""
    a, b = node.sources[:2]
    assert a is not None
    assert b is not None
    return a, b


def _activation_of_gate(node: Tensor) -> str | None:
    if node.op == "geglu" and node.attrs["approximate"] == "tanh":
        return "gelu_tanh"
    return "silu" if node.op == "swiglu" else None


def _only_readers(graph: Graph) -> dict[Tensor, Tensor]:
    """For each tensor that exactly one node reads, and nothing else, that node."""
    readers: dict[Tensor, list[Tensor | None]] = {}
    for node in graph.nodes:
        for s in node.sources:
            if s is not None:
                readers.setdefault(s, []).append(node)
    for t in (*graph.outputs, *graph.updates.values()):
        readers.setdefault(t, []).append(None)
    return {t: nodes[0] for t, nodes in readers.items() if len(nodes) == 1 and nodes[0] is not None}


def _other(reader: Tensor, operand: Tensor) -> Tensor | None:
    """The other operand of an addition."""
    if reader.op != "add":
        return None
    a, b = reader.sources
    return b if a is operand else a


def _is_bias(other: Tensor | None, linear: Tensor) -> bool:
    return other is not None and other.is_leaf and other.shape == linear.shape[-1:]
