"""Find recurrences whose state can stay where it is: our kernel then reads and writes the rows of the cache itself.

As separate nodes, the state is copied out of the cache and back again. It is as large as the weights of its layer when
a few texts are written at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml.cpu.fusion import Readers, readers_of

__all__ = ["KEYS", "KeptState", "find_kept_states"]

KEYS = (64, 128, 256)
"""The sizes of keys in ``hotshoe_linear_attention``."""


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
    nodes = [node for node in graph.nodes if _is_ours(node) and is_mine(node)]
    readers = readers_of(graph) if nodes else {}
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


def _match(graph: Graph, node: Tensor, readers: Readers) -> KeptState | None:
    state = node.source(-1)
    row = len(state), state.size // len(state)  # as read and written: a row of the cache for each sequence
    end_of_y = node.size - state.size
    read, before = _back(node, readers)
    parts = {part.attrs["slices"]: part for part in readers[node] if part is not None and part.op == "slice"}
    new = parts.get(((end_of_y, node.size, 1),))
    if read.op != "take" or len(readers[node]) != 2 or new is None or ((0, end_of_y, 1),) not in parts:
        return None
    write, after = _forth(new, readers)
    cache = read.source(0)
    if cache.op != "state" or cache.dtype is not DType.F32 or write.op != "set_rows" or write.source(0) is not cache:
        return None
    alone = readers[read] == [before[-1] if before else node] and readers[cache] == [read, write]
    in_place = write in graph.in_place and readers[write] == [None]
    fits = read.shape == write.source(2).shape == row and cache.ndim == 2
    are_i32 = all(t.source(1).dtype is DType.I32 for t in (read, write))
    if not (alone and in_place and fits and are_i32):
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
