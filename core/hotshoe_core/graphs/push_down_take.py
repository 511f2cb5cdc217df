"""What only a few rows are asked of is computed for those rows alone: ``take`` moves towards the inputs.

A text model ends with ``x.take(batch.outputs)``: of a prompt, only the last token's logits are asked for. What stands
between the last attention and that ``take`` works row by row, so of the last layer only the keys and values are needed
of the other tokens. Which ops work row by row is in the op table (``Op.by_row``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.tensor import TABLE, Tensor, scope

__all__ = ["narrowed"]

_SAVED = 16  # rows: where fewer are left out, looking for them costs more than they do


def narrowed(graph: Graph) -> tuple[Graph, dict[Tensor, Tensor]]:
    """The graph with only the rows that its outputs and updates need, and what stands for each of its outputs."""
    chosen = _chosen_rows(graph) if any(_takes_few(node) for node in graph.nodes) else {}
    if not chosen:
        return graph, {t: t for t in graph.outputs}
    new: dict[Tensor | None, Tensor] = {}
    taken: dict[tuple[Tensor, Tensor], Tensor] = {}

    def rows_of(t: Tensor, indices: Tensor) -> Tensor:
        """Those rows of t: computed alone where nothing else is read of it, else taken out."""
        if chosen.get(t) is indices:
            return new[t]
        if (t, indices) not in taken:
            taken[t, indices] = _take(new.get(t, t), indices)
        return taken[t, indices]

    for node in graph.nodes:
        indices = chosen.get(node)
        if indices is None:
            if _takes_few(node) and chosen.get(_operands(node)[0]) is node.sources[1]:
                # those rows are all that its source has left
                with scope(node.name, node.layer):
                    new[node] = new[node.sources[0]].cast(node.dtype)
            else:
                new[node] = _rebuilt(node, [new.get(s, s) for s in node.sources], node.shape)
            continue
        with scope(node.name, node.layer):
            rows = _row_operands(node) or ()
            sources = [
                rows_of(s, indices) if s is not None and i in rows else new.get(s, s)
                for i, s in enumerate(node.sources)
            ]
            new[node] = _rebuilt(node, sources, (*indices.shape, *node.shape[1:]))
    outputs = {t: new.get(t, t) for t in graph.outputs}
    updates = {state: new.get(value, value) for state, value in graph.updates.items()}
    return Graph.trace(tuple(outputs.values()), updates), outputs


def _takes_few(node: Tensor) -> bool:
    """Whether it takes at most half of a computed value's rows, and which ones is known before the graph runs."""
    if node.op != "take":
        return False
    x, indices = _operands(node)
    if x.is_leaf or not indices.is_leaf or indices.ndim != 1:
        return False
    return x.shape[0] - indices.shape[0] >= max(_SAVED, indices.shape[0])


def _operands(take: Tensor) -> tuple[Tensor, Tensor]:
    x, indices = take.sources
    assert x is not None
    assert indices is not None
    return x, indices


def _chosen_rows(graph: Graph) -> dict[Tensor, Tensor]:
    """Of nodes that are read only in some rows, and can be computed for those alone: the indices of the rows."""
    asked: dict[Tensor, Tensor | None] = dict.fromkeys((*graph.outputs, *graph.updates.values()))  # None: all rows
    for node in reversed(graph.nodes):  # all that read a node come before it
        indices = asked.get(node)
        rows = None if indices is None else _row_operands(node)
        if rows is None:
            asked[node] = indices = None
            if _takes_few(node):
                rows, indices = (0,), _operands(node)[1]
        for i, source in enumerate(node.sources):
            if source is not None:
                of = indices if rows is not None and i in rows else None
                asked[source] = of if asked.get(source, of) is of else None
    return {t: indices for t, indices in asked.items() if indices is not None and not t.is_leaf}


def _row_operands(node: Tensor) -> Sequence[int] | None:
    by_row = TABLE[node.op].by_row
    rows = None if by_row is None else by_row(node.sources, node.attrs, node.shape)
    blocks = rows is not None and any(s is not None and s.dtype.is_quantized for s in (node.sources[i] for i in rows))
    return None if blocks else rows


def _rebuilt(node: Tensor, sources: Sequence[Tensor | None], shape: tuple[int, ...]) -> Tensor:
    """The node over these sources, of this shape: another number of rows."""
    if shape == node.shape and all(a is b for a, b in zip(sources, node.sources)):
        return node
    attrs = node.attrs if shape == node.shape else _with_rows(node.attrs, shape)
    return Tensor(
        node.op, tuple(sources), attrs, shape, node.dtype, name=node.name, context=node.context, layer=node.layer
    )


def _with_rows(attrs: Mapping[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Attributes with the number of rows that ``shape`` has; reshape, expand and slice have it among theirs."""
    changed = dict(attrs)
    if "shape" in attrs:
        changed["shape"] = shape
    if "slices" in attrs:
        changed["slices"] = ((0, shape[0], 1), *attrs["slices"][1:])
    return changed


def _take(t: Tensor, indices: Tensor) -> Tensor:
    """Rows of a value of any type and number of axes, in its own type."""
    rows = t.take(indices) if t.ndim > 1 else t.reshape(-1, 1).take(indices).reshape(-1)
    return rows.cast(t.dtype)
