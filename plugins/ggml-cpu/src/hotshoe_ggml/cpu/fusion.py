"""Fuse a product of our kernels with its bias, activation and residual, or with the product of its gate.

As separate nodes, each of them would read and write the whole result once more; in the product's epilogue they cost
almost nothing. Of a product whose first features alone are read, only these are computed. Nodes are fused only if no
other node reads the values between them. Products that read the same x are one node, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.cpu.packed import DENSE_PANEL

__all__ = ["Pattern", "Readers", "find_patterns", "find_siblings", "operands", "readers_of"]

_MAX_SIBLINGS = 4

Readers = Mapping[Tensor, Sequence[Tensor | None]]
"""The nodes that read each tensor. None stands for the caller, who reads outputs and new states."""


class Pattern(NamedTuple):
    """``activation(x @ weight.T + bias) + residual``. ``linear`` is its first node.

    With ``features``, the first ones of ``x @ weight.T`` alone. With a gate, the product of x with another weight:
    ``activation(gate) * (x @ weight.T)``. ``linear`` and the gate may be the ``linear_experts`` of one choice, without
    bias and residual.
    """

    linear: Tensor
    bias: Tensor | None = None
    activation: str = "none"
    residual: Tensor | None = None
    gate: Tensor | None = None
    features: int = 0


def find_patterns(
    graph: Graph, uses_our_kernel: Callable[[Tensor], bool], is_pair: Callable[[Tensor, Tensor], bool]
) -> tuple[dict[Tensor, Pattern], set[Tensor]]:
    """The patterns by their last nodes, and the other nodes of the patterns.

    uses_our_kernel: whether our kernels compute a ``linear`` or ``linear_experts``. is_pair: whether the first of two
    such products may be the gate of the second.
    """
    ours = {node for node in graph.nodes if node.op in ("linear", "linear_experts") and uses_our_kernel(node)}
    if not ours:  # all layers are on other units
        return {}, set()
    only_reader = _only_readers(graph)

    def reads_state(product: Tensor) -> bool:
        """Whether x may be overwritten before what reads the product, where a pattern is computed."""
        return graph.state_behind(operands(product)[0]) is not None

    found: dict[Tensor, Pattern] = {}
    absorbed: set[Tensor] = set()
    for node in graph.nodes:
        activation = _activation_of_gate(node)
        if activation is not None:
            gate, up = operands(node)
            alone = all(found.get(t) == Pattern(t) and only_reader.get(t) is node for t in (gate, up))
            if alone and is_pair(gate, up) and not reads_state(gate):
                absorbed |= {gate, up}
                found[node] = Pattern(up, activation=activation, gate=gate)
        if node not in ours:
            continue
        pattern, last = Pattern(node), node
        if node.op == "linear_experts" or reads_state(node):
            found[node] = pattern
            continue
        reader = only_reader.get(last)
        if reader is not None and (n := _first_features(reader)):
            absorbed.add(last)
            found[reader] = pattern._replace(features=n)
            continue
        if reader is not None and _is_bias(_other(reader, last), node):
            absorbed.add(last)
            pattern, last = pattern._replace(bias=_other(reader, last)), reader
            reader = only_reader.get(last)
        if reader is not None and reader.op == "gelu" and reader.attrs["approximate"] == "none":
            absorbed.add(last)
            pattern, last = pattern._replace(activation="gelu"), reader
            reader = only_reader.get(last)
        if reader is not None and reader not in found:
            other = _other(reader, last)
            if other is not None and other.shape == node.shape and other is not last:
                absorbed.add(last)
                pattern, last = pattern._replace(residual=other), reader
        found[last] = pattern
    return {last: pattern for last, pattern in found.items() if last not in absorbed}, absorbed


def find_siblings(
    found: Mapping[Tensor, Pattern], kind_of: Callable[[Tensor], Hashable]
) -> Iterable[Mapping[Tensor, Pattern]]:
    """Up to four products that read the same x, such as queries, keys and values: their patterns by their last nodes.

    More would need too much memory at once: all layers of a decoder may read the same rows of an encoder. A pattern
    with a residual, a gate, or its first features alone stays by itself. kind_of: what the ``linear`` nodes must
    have in common; None for one that stays by itself.
    """
    by_input: dict[tuple[Tensor, Hashable], list[dict[Tensor, Pattern]]] = {}
    for last, pattern in found.items():
        if pattern.residual is not None or pattern.gate is not None or pattern.features:
            continue
        kind = kind_of(pattern.linear)
        if pattern.linear.op == "linear" and kind is not None:
            alike = by_input.setdefault((pattern.linear.source(0), kind), [{}])
            if len(alike[-1]) == _MAX_SIBLINGS:
                alike.append({})
            alike[-1][last] = pattern
    return [siblings for alike in by_input.values() for siblings in alike if len(siblings) > 1]


def _first_features(reader: Tensor) -> int:
    """How many first elements of each row a slice takes; 0 for another node, or a number that splits a panel."""
    if reader.op != "slice":
        return 0
    *rows, (start, stop, step) = reader.attrs["slices"]
    shape = reader.source(0).shape
    whole = all(part == (0, n, 1) for part, n in zip(rows, shape))
    return int(stop) if whole and (start, step) == (0, 1) and stop % DENSE_PANEL == 0 else 0


def operands(node: Tensor) -> tuple[Tensor, Tensor]:
    """The first two sources: x and the weight of a product; the gate and the other factor of a gated activation."""
    return node.source(0), node.source(1)


def _activation_of_gate(node: Tensor) -> str | None:
    if node.op == "geglu" and node.attrs["approximate"] == "tanh":
        return "gelu_tanh"
    return "silu" if node.op == "swiglu" else None


def _only_readers(graph: Graph) -> dict[Tensor, Tensor]:
    """For each tensor that exactly one node reads, this node. Tensors that are outputs or new states are left out."""
    return {t: nodes[0] for t, nodes in readers_of(graph).items() if len(nodes) == 1 and nodes[0] is not None}


def readers_of(graph: Graph) -> Readers:
    """The readers of each tensor of the graph."""
    readers: dict[Tensor, list[Tensor | None]] = {}
    for node in graph.nodes:
        for s in node.sources:
            if s is not None:
                readers.setdefault(s, []).append(node)
    for t in (*graph.outputs, *graph.updates.values()):
        readers.setdefault(t, []).append(None)
    return readers


def _other(reader: Tensor, operand: Tensor) -> Tensor | None:
    """The other operand of an addition; None if ``reader`` is another op."""
    if reader.op != "add":
        return None
    a, b = reader.sources
    return b if a is operand else a


def _is_bias(other: Tensor | None, linear: Tensor) -> bool:
    return other is not None and other.is_leaf and other.shape == linear.shape[-1:]
