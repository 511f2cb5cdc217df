"""Graph pass: move a ``take`` towards the inputs, so that only the requested rows are computed.

A text model ends with ``x.take(batch.outputs)``: for a prompt, only the logits of the last token are needed. The ops
between the last attention and that ``take`` work row by row. So in the last layer, the other tokens need only their
keys and values. The op table says which ops work row by row (``Op.by_row``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.scope import scope
from hotshoe_core.tensors.tensor import TABLE, Tensor

__all__ = ["narrowed"]

_MIN_SAVED = 8  # rows: fewer are not worth the time of this pass, which is 2 ms for a new graph of 24 layers


def narrowed(graph: Graph) -> tuple[Graph, dict[Tensor, Tensor]]:
    """The graph with only the rows that its outputs and updates need, and the tensor that replaces each output."""
    chosen = _chosen_rows(graph) if any(_takes_few(node) for node in graph.nodes) else {}
    if not chosen:
        return graph, {t: t for t in graph.outputs}
    new: dict[Tensor, Tensor] = {}
    taken: dict[tuple[Tensor, Tensor], Tensor] = {}

    def rows_of(t: Tensor, indices: Tensor) -> Tensor:
        """These rows of ``t``: computed alone if no other rows are read, else taken out of ``t``."""
        if chosen.get(t) is indices:
            return new[t]
        if (t, indices) not in taken:
            taken[t, indices] = _take(new.get(t, t), indices)
        return taken[t, indices]

    for node in graph.nodes:
        indices = chosen.get(node)
        if indices is None:
            if _takes_few(node) and chosen.get(node.source(0)) is node.source(1):
                # the source now has only these rows
                with scope(node.name, node.layer):
                    new[node] = new[node.source(0)].cast(node.dtype)
            else:
                sources = [None if s is None else new.get(s, s) for s in node.sources]
                new[node] = _rebuilt(node, sources, node.shape)
            continue
        with scope(node.name, node.layer):
            rows = _row_operands(node) or ()
            sources = [
                None if s is None else rows_of(s, indices) if i in rows else new.get(s, s)
                for i, s in enumerate(node.sources)
            ]
            new[node] = _rebuilt(node, sources, (*indices.shape, *node.shape[1:]))
    outputs = {t: new.get(t, t) for t in graph.outputs}
    updates = {state: new.get(value, value) for state, value in graph.updates.items()}
    return Graph.trace(tuple(outputs.values()), updates), outputs


def _takes_few(node: Tensor) -> bool:
    """Whether the node takes at most half of a computed value's rows, by indices that the graph does not compute."""
    if node.op != "take":
        return False
    x, indices = node.source(0), node.source(1)
    if x.is_leaf or not indices.is_leaf or indices.ndim != 1:
        return False
    return x.shape[0] - indices.shape[0] >= max(_MIN_SAVED, indices.shape[0])


def _chosen_rows(graph: Graph) -> dict[Tensor, Tensor]:
    """The indices of rows for each node that can be computed for these rows alone and whose other rows are not read."""
    needed: dict[Tensor, Tensor | None] = dict.fromkeys((*graph.outputs, *graph.updates.values()))  # None: all rows
    for node in reversed(graph.nodes):  # readers of a node come before it
        indices = needed.get(node)
        rows = None if indices is None else _row_operands(node)
        if rows is None:
            needed[node] = indices = None
            if _takes_few(node):
                rows, indices = (0,), node.source(1)
        for i, source in enumerate(node.sources):
            if source is not None:
                wanted = indices if rows is not None and i in rows else None
                needed[source] = wanted if needed.get(source, wanted) is wanted else None
    return {t: indices for t, indices in needed.items() if indices is not None and not t.is_leaf}


def _row_operands(node: Tensor) -> Sequence[int] | None:
    """The operands whose row i alone determines row i of the node; None if it mixes rows or has quantized operands."""
    by_row = TABLE[node.op].by_row
    rows = None if by_row is None else by_row(node.sources, node.attrs, node.shape)
    blocks = rows is not None and any(s is not None and s.dtype.is_quantized for s in (node.sources[i] for i in rows))
    return None if blocks else rows


def _rebuilt(node: Tensor, sources: Sequence[Tensor | None], shape: tuple[int, ...]) -> Tensor:
    """The node with these sources and this shape, which may have fewer rows."""
    if shape == node.shape and all(a is b for a, b in zip(sources, node.sources)):
        return node
    attrs = node.attrs if shape == node.shape else _with_rows(node.attrs, shape)
    return Tensor(
        node.op, tuple(sources), attrs, shape, node.dtype, name=node.name, context=node.context, layer=node.layer
    )


def _with_rows(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """The attributes for another number of rows, which reshape, expand and slice contain."""
    changed = dict(attrs)
    if "shape" in attrs:
        changed["shape"] = shape
    if "slices" in attrs:
        changed["slices"] = ((0, shape[0], 1), *attrs["slices"][1:])
    return changed


def _take(t: Tensor, indices: Tensor) -> Tensor:
    """Rows of a value of any type and number of axes; the type is kept."""
    rows = t.take(indices) if t.ndim > 1 else t.reshape(-1, 1).take(indices).reshape(-1)
    return rows.cast(t.dtype)
