"""Which device runs each node of a graph, and which values cross between devices.

A node runs on the device of its layer, with one exception. Parts of a layer can be on another device: its states, or
the weights of its experts. A node that reads such a part runs where the part is. So do the nodes that only continue
with its result, until one reads a weight of the layer or a value of the layer's device. A value crosses when a device
reads what another device computed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from hotshoe_core.errors.text import format_bytes
from hotshoe_core.graphs.graph import Graph, is_view
from hotshoe_core.tensors.tensor import Tensor

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import NodePlacement, Placement

__all__ = ["Crossing", "DeviceOfTensor", "Split", "Splits", "node_devices"]

DeviceOfTensor = Callable[[Tensor], str]
"""The device that holds a weight or state."""


def node_devices(graph: Graph, placement: Placement, device_of_tensor: DeviceOfTensor) -> dict[Tensor, str]:
    """The device that the placement intends for each node. That device may lack the op."""
    devices: dict[Tensor, str] = {}
    leaf_of: dict[Tensor | None, Tensor] = {t: t for t in graph.leaves if t.op in ("weight", "state")}
    device_of_layer = functools.cache(placement.device)
    for node in graph.nodes:
        leaves = [leaf_of[s] for s in node.sources if s in leaf_of]
        if leaves and node.sources[0] in leaf_of and (is_view(node) or node in graph.in_place):
            leaf_of[node] = leaves[0]  # the node's value is in that leaf's memory
        devices[node] = _node_device(node, leaves, devices, device_of_layer, device_of_tensor)
    return devices


def _node_device(
    node: Tensor,
    leaves: Sequence[Tensor],
    devices: dict[Tensor, str],
    device_of_layer: Callable[[int], str],
    device_of_tensor: DeviceOfTensor,
) -> str:
    """``leaves``: the weights and states that the node reads; ``devices``: of the nodes before it."""
    layer_device = device_of_layer(node.layer)
    for leaf in leaves:
        device = device_of_tensor(leaf)
        if device != layer_device and (leaf.op == "state" or device != device_of_layer(leaf.layer)):
            return device
    if leaves and node.layer >= 0:
        return layer_device
    first = None
    for s in node.sources:
        if s is None or s not in devices:  # a leaf
            continue
        device = devices[s]
        if node.layer < 0:  # belongs to no layer: it moves rows of a cache, for example
            return device
        if s.layer != node.layer or device != (first or device):
            return layer_device
        first = device
    return first or layer_device


class Split(NamedTuple):
    """Consecutive nodes that run on one device."""

    device: str
    first: str
    """The name of the first node."""
    n_nodes: int


class Crossing(NamedTuple):
    """A value that one device holds and another device reads. It is copied once in each run."""

    value: str
    kind: str
    """The op of the value; "weight" or "state" for such a leaf."""
    source: str
    target: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Splits:
    """A graph divided over its devices."""

    nodes: tuple[NodePlacement, ...]
    """Where each node runs."""

    splits: tuple[Split, ...]

    crossings: tuple[Crossing, ...]
    """The values copied between devices. Inputs, which come from the host, and an engine's own copies do not count."""

    @classmethod
    def of(cls, graph: Graph, placements: Sequence[NodePlacement], device_of_tensor: DeviceOfTensor) -> Splits:
        """The splits of a graph. ``placements``: where each of ``graph.nodes`` runs, in their order."""
        devices = {t: device_of_tensor(t) for t in graph.leaves if t.op in ("weight", "state")}
        splits: list[Split] = []
        crossings: dict[tuple[Tensor, str], Crossing] = {}
        for node, placement in zip(graph.nodes, placements):
            if is_view(node) and node.source(0) in devices:
                devices[node] = devices[node.source(0)]  # the value moves only when a node reads the view
                continue
            device = devices[node] = placement.device
            if splits and splits[-1].device == device:
                splits[-1] = splits[-1]._replace(n_nodes=splits[-1].n_nodes + 1)
            else:
                splits.append(Split(device, placement.node, 1))
            for s in node.sources:
                if s is not None and devices.get(s, device) != device:
                    crossings[s, device] = Crossing(s.name, s.op, devices[s], device, s.nbytes)
        return cls(tuple(placements), tuple(splits), tuple(crossings.values()))

    @property
    def nbytes(self) -> int:
        """Bytes copied between devices in each run."""
        return sum(c.nbytes for c in self.crossings)

    @property
    def fallbacks(self) -> tuple[NodePlacement, ...]:
        """The nodes that run on another device than intended, because the intended one lacks the op."""
        return tuple(n for n in self.nodes if n.how == "fallback")

    def __str__(self) -> str:
        n, more = len(self.splits), "s" if len(self.splits) != 1 else ""
        parts = f"{len(self.nodes)} nodes in {n} split{more} (parts that run on one device)"
        lines = [f"{parts}; {format_bytes(self.nbytes)} cross in each run"]
        lines += [f"  {s.device}: {s.n_nodes} nodes from {s.first}" for s in self.splits]
        lines += [f"  {c.source} -> {c.target}: {c.value}, {format_bytes(c.nbytes)}" for c in self.crossings]
        lines += [f"  not on its own device: {n.op} ({n.node}), on {n.device}" for n in self.fallbacks]
        return "\n".join(lines)
