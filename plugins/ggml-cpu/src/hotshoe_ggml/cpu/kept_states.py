"""Find recurrences whose state can stay where it is: our kernel then reads and writes the rows of the cache itself.

As separate nodes, the state is copied out of the cache and back again. It is as large as the weights of its layer when
a few texts are written at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor

__all__ = ["KEYS", "KeptState", "find_kept_states"]

KEYS = (64, 128, 256)
"""The sizes of keys in ``hotshoe_linear_attention``."""

Readers = Mapping[Tensor, Sequence[Tensor | None]]
"""The nodes that read each tensor. None stands for the caller, who reads outputs and new states."""


class KeptState(NamedTuple):
    """A recurrence with the nodes that read its state from rows of a cache and write it there."""

    node: Tensor
    read: Tensor
    """The ``take`` from the cache."""

    write: Tensor
    """The ``set_rows`` into the cache, in place."""

    absorbed: frozenset[Tensor]
    """The nodes that compute nothing if the recurrence reads and writes the cache."""


def find_kept_states(graph: Graph, is_mine: Callable[[Tensor], bool]) -> Iterator[KeptState]:
    """The recurrences of the graph that our kernel computes, and whose states no other node reads or writes."""
    nodes = [node for node in graph.nodes if is_mine(node) and _is_ours(node)]
    readers = _readers(graph) if nodes else {}
    for node in nodes:
        found = _match(graph, node, readers)
        if found is not None and all(map(is_mine, found.absorbed)):
            yield found


def _is_ours(node: Tensor) -> bool:
    if node.op == "gated_delta_rule":
        return node.source(1).shape[-1] in KEYS
    if node.op == "ssm_scan":
        rates = node.source(2)
        return node.source(3).shape[-1] in KEYS and (rates.ndim == 1 or rates.shape[1] == 1)
    return False


def _readers(graph: Graph) -> Readers:
    readers: dict[Tensor, list[Tensor | None]] = {}
    for node in graph.nodes:
        for source in node.sources:
            if source is not None:
                readers.setdefault(source, []).append(node)
    for t in (*graph.outputs, *graph.updates.values()):
        readers.setdefault(t, []).append(None)
    return readers


def _match(graph: Graph, node: Tensor, readers: Readers) -> KeptState | None:
    read, before = _back(node, readers)
    new = [s for s in readers[node] if s is not None and s.op == "slice" and s.attrs["slices"][0][0] > 0]
    if read.op != "take" or len(readers[node]) != 2 or len(new) != 1:
        return None
    write, after = _forth(new[0], readers)
    cache = read.source(0)
    only_these = readers[read] == [before[-1] if before else node] and readers[cache] == [read, write]
    fits = cache.op == "state" and cache.dtype is DType.F32 and write.op == "set_rows" and write.source(0) is cache
    are_i32 = all(t.source(1).dtype is DType.I32 for t in (read, write))
    if not (only_these and fits and are_i32 and write in graph.in_place and readers[write] == [None]):
        return None
    return KeptState(node, read, write, frozenset((read, *before, *after, write)))


def _back(node: Tensor, readers: Readers) -> tuple[Tensor, list[Tensor]]:
    """What the last operand of ``node`` is a reshape of, and the reshapes, if nothing else reads them."""
    reader, t, between = node, node.source(-1), []
    while t.op == "reshape" and readers[t] == [reader]:
        between.append(t)
        reader, t = t, t.source(0)
    return t, between


def _forth(t: Tensor, readers: Readers) -> tuple[Tensor, list[Tensor]]:
    """The first node that does more than reshape ``t``, and the nodes before it, if nothing else reads them."""
    between = [t]
    while True:
        reader = readers[t][0]
        if len(readers[t]) > 1 or reader is None:
            return t, between
        t = reader
        if t.op != "reshape":
            return t, between
        between.append(t)
