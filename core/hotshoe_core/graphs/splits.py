"""Where the nodes of a graph run, by the placement of a model's parts; and what crosses between devices.

A node runs on the device of its layer. What reads a part of the layer that lies apart, its states or the weights of its
experts, runs where that part is; and so does what only goes on with such a result, until a weight of the layer or a
value of its own device is read. Bytes cross where a device reads what another has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hotshoe_core.errors.text import format_bytes
from hotshoe_core.graphs.graph import Graph, is_view
from hotshoe_core.tensors.tensor import Tensor

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import NodePlacement, Placement

__all__ = ["Crossing", "Split", "Splits", "node_places"]

Home = Callable[[Tensor], str]
"""The device that holds a weight or state."""


def node_places(graph: Graph, placement: Placement, home: Home) -> dict[Tensor, str]:
    """The device that the placement means for each node, whether it has the op or not."""
    places: dict[Tensor, str] = {}
    behind: dict[Tensor, Tensor] = {t: t for t in graph.leaves if t.op in ("weight", "state")}
    for node in graph.nodes:
        held = [behind[s] for s in node.sources if s is not None and s in behind]
        if node.sources and node.sources[0] in behind and (is_view(node) or node in graph.in_place):
            behind[node] = behind[node.sources[0]]  # it lies in that one's memory
        places[node] = _place(node, held, places, placement, home)
    return places


def _place(node: Tensor, held: Sequence[Tensor], places: dict[Tensor, str], placement: Placement, home: Home) -> str:
    """held: the weights and states that the node reads."""
    own = placement.device(node.layer)
    for leaf in held:
        where = home(leaf)
        if where != own and (leaf.op == "state" or where != placement.device(leaf.layer)):
            return where
    before = [s for s in node.sources if s is not None and s in places]
    if not before:
        return own
    if node.layer < 0:  # of no layer, such as what moves a cache's rows
        return places[before[0]]
    first = places[before[0]]
    apart = not held and all(s.layer == node.layer and places[s] == first for s in before)
    return first if apart else own


class Split(NamedTuple):
    """Nodes that run one after the other on one device. first: the name of the first of them."""

    device: str
    first: str
    n_nodes: int


class Crossing(NamedTuple):
    """A value that one device holds and another reads, brought there once in each run. kind: its op, or "weight"."""

    value: str
    kind: str
    source: str
    target: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Splits:
    """A graph over its devices. nodes: where each runs; crossings: what is brought from one device to another.

    Inputs, which come from the host, are not counted; nor is what an engine copies besides.
    """

    nodes: tuple[NodePlacement, ...]
    splits: tuple[Split, ...]
    crossings: tuple[Crossing, ...]

    @classmethod
    def of(cls, graph: Graph, placements: Sequence[NodePlacement], home: Home) -> Splits:
        """The splits of a graph whose nodes run as ``placements`` says, in its order."""
        where = {t: home(t) for t in graph.leaves if t.op in ("weight", "state")}
        splits: list[Split] = []
        crossings: dict[tuple[Tensor, str], Crossing] = {}
        for node, placed in zip(graph.nodes, placements):
            source = node.sources[0] if node.sources else None
            if is_view(node) and source is not None and source in where:
                where[node] = where[source]  # nothing moves before somebody reads it
                continue
            where[node] = placed.device
            if splits and splits[-1].device == placed.device:
                splits[-1] = splits[-1]._replace(n_nodes=splits[-1].n_nodes + 1)
            else:
                splits.append(Split(placed.device, placed.node, 1))
            for s in node.sources:
                if s is not None and where.get(s, placed.device) != placed.device:
                    nbytes = s.dtype.nbytes(s.shape)
                    crossings[s, placed.device] = Crossing(s.name, s.op, where[s], placed.device, nbytes)
        return cls(tuple(placements), tuple(splits), tuple(crossings.values()))

    @property
    def nbytes(self) -> int:
        """Bytes that cross in each run."""
        return sum(c.nbytes for c in self.crossings)

    @property
    def fallbacks(self) -> tuple[NodePlacement, ...]:
        """The nodes that run on another device than the placement means, which has no such op."""
        return tuple(n for n in self.nodes if n.how == "fallback")

    def __str__(self) -> str:
        lines = [f"{len(self.nodes)} nodes in {len(self.splits)} splits; {format_bytes(self.nbytes)} cross in each run"]
        lines += [f"  {s.device}: {s.n_nodes} nodes from {s.first}" for s in self.splits]
        lines += [f"  {c.source} -> {c.target}: {c.value}, {format_bytes(c.nbytes)}" for c in self.crossings]
        lines += [f"  not on its own device: {n.op} ({n.node}), on {n.device}" for n in self.fallbacks]
        return "\n".join(lines)
