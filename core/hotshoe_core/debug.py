"""Look at a value, and at a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe_core.errors import GraphError
from hotshoe_core.graph import Graph
from hotshoe_core.tensor import Tensor

__all__ = ["dump", "to_dot"]


def dump(
    value: Tensor | np.ndarray[Any, Any], *, precision: int = 4, threshold: int = 1000, edge_items: int = 3
) -> str:
    """The numbers of an array or a computed tensor.

    precision: decimals. threshold: above this many elements, only ``edge_items`` at each end of an axis
    are shown. A tensor must have been forwarded and computed; raises GraphError otherwise.
    """
    if edge_items < 1 or precision < 0:
        raise GraphError(f"dump: got precision {precision} and edge_items {edge_items}; expected >= 0 and >= 1")
    array = value.read() if isinstance(value, Tensor) else np.asarray(value)
    text = np.array2string(
        array, precision=precision, threshold=threshold, edgeitems=edge_items, floatmode="fixed", separator=", "
    )
    return f"{value!r}\n{text}" if isinstance(value, Tensor) else text


def to_dot(graph: Graph) -> str:
    """The graph as Graphviz source: ``dot -Tsvg``. Boxes are grouped by the part of the model they belong to."""
    lines = ["digraph hotshoe {", "  rankdir=TB; node [shape=box, fontname=monospace, fontsize=10];"]
    groups: dict[str, list[str]] = {}
    fills = {"weight": "lightgrey", "state": "khaki", "input": "lightblue", "constant": "white"}
    for t in (*graph.leaves, *graph.nodes):
        group = "" if t.is_leaf else t.name.rpartition(".")[0]
        label = f"{t.name if t.is_leaf else t.op}\\n{t.dtype.name} {list(t.shape)}".replace('"', "'")
        style = f', style=filled, fillcolor="{fills[t.op]}"' if t.is_leaf else ""
        bold = ", penwidth=2" if t in graph.outputs else ""
        groups.setdefault(group, []).append(f'n{t.id} [label="{label}"{style}{bold}];')
    for i, (group, nodes) in enumerate(groups.items()):
        if group:
            lines += [f"  subgraph cluster_{i} {{", f'    label="{group}"; color=grey;']
            lines += [f"    {n}" for n in nodes] + ["  }"]
        else:
            lines += [f"  {n}" for n in nodes]
    for t in graph.nodes:
        lines += [f"  n{s.id} -> n{t.id};" for s in t.sources if s is not None]
    lines += [f"  n{new.id} -> n{state.id} [style=dashed, label=update];" for state, new in graph.updates.items()]
    return "\n".join([*lines, "}"])
