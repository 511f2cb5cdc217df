"""Graph: tensors in topological order, and the decomposition of what a backend cannot lower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import hotshoe_core.ops  # noqa: F401  (fills the op table)
from hotshoe_core.errors import GraphError, UnsupportedOpError
from hotshoe_core.tensor import TABLE, Tensor, scope

__all__ = ["Graph", "lower"]


@dataclass(frozen=True, slots=True)
class Graph:
    """What a backend compiles. Every tensor stands after its sources.

    updates maps a state to the tensor it takes the value of when the graph has run. decomposed names the
    composites core replaced, as (node name, op).
    """

    nodes: tuple[Tensor, ...]
    leaves: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    updates: Mapping[Tensor, Tensor]
    decomposed: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def trace(cls, outputs: Sequence[Tensor], updates: Mapping[Tensor, Tensor] | None = None) -> Graph:
        """The graph that computes ``outputs`` and ``updates``. Raises GraphError for a stale read of a state."""
        updates = dict(updates or {})
        ordered = _topological((*updates.values(), *outputs))
        nodes = tuple(t for t in ordered if not t.is_leaf)
        _check_updates(nodes, outputs, updates)
        return cls(nodes, tuple(t for t in ordered if t.is_leaf), tuple(outputs), updates)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.leaves if t.op == "input")


def lower(graph: Graph, supports: Callable[[Tensor], bool]) -> tuple[Graph, dict[Tensor, Tensor]]:
    """Replace every composite ``supports`` refuses by its decomposition, again and again until none is left.

    Returns the new graph, and the tensor of it that stands for each output of the old one.
    Raises UnsupportedOpError where a primitive is refused.
    """
    replaced: dict[Tensor, Tensor] = {}
    decomposed: list[tuple[str, str]] = []

    def place(node: Tensor) -> Tensor:
        sources = tuple(None if s is None else replaced.get(s, s) for s in node.sources)
        if any(a is not b for a, b in zip(sources, node.sources)):
            node = Tensor(
                node.op, sources, node.attrs, node.shape, node.dtype,
                name=node.name, context=node.context, layer=node.layer,
            )  # fmt: skip
        if supports(node):
            return node
        op = TABLE[node.op]
        if not op.composite:
            raise UnsupportedOpError(
                f"{node.name}: the backend has no lowering for the primitive op {node.op} with "
                + ", ".join(repr(s) for s in node.sources if s is not None)
            )
        decomposed.append((node.name, node.op))
        with scope(node.name, node.layer):
            expression: Tensor = op.body(*node.sources, **node.attrs)
        for inner in _topological((expression,), stop=set(node.sources)):
            if not inner.is_leaf:
                replaced[inner] = place(inner)
        return replaced.get(expression, expression)

    for node in graph.nodes:
        replaced[node] = place(node)
    outputs = {t: replaced.get(t, t) for t in graph.outputs}
    updates = {state: replaced.get(new, new) for state, new in graph.updates.items()}
    new = Graph.trace(tuple(outputs.values()), updates)
    return Graph(new.nodes, new.leaves, new.outputs, new.updates, tuple(decomposed)), outputs


def _topological(roots: Iterable[Tensor], stop: set[Tensor | None] | None = None) -> list[Tensor]:
    """Depth first without recursion: a deep model must not meet Python's recursion limit."""
    done: set[Tensor | None] = set(stop or ())
    done.add(None)
    order: list[Tensor] = []
    stack = [(t, False) for t in reversed(list(roots))]
    while stack:
        t, expanded = stack.pop()
        if t in done:
            continue
        if expanded:
            done.add(t)
            order.append(t)
        else:
            stack.append((t, True))
            stack.extend((s, False) for s in reversed(t.sources) if s is not None and s not in done)
    return order


def _check_updates(nodes: Sequence[Tensor], outputs: Sequence[Tensor], updates: Mapping[Tensor, Tensor]) -> None:
    """A state that is updated may be read only through its update: else old or new would depend on the order."""
    stale: dict[Tensor, Tensor] = {}  # tensors whose memory an update overwrites, and that state
    chains: dict[Tensor, Tensor] = {}  # the steps of an update, and its state
    for state, new in updates.items():
        t: Tensor | None = new
        while t is not None and t.op == "set_rows":
            chains[t] = state
            t = t.sources[0]
            if t is not None:
                stale[t] = state
        if t is not state:
            raise GraphError(
                f"the update of {state.name} is not made from it: expected state.set_rows(indices, rows), got {new!r}"
            )
    # the backend overwrites the state: whoever reads it, or a step on the way, may meet old or new
    for node in nodes:
        for source in node.sources:
            if source in stale and chains.get(node) is not stale[source]:
                raise GraphError(
                    f"{node.name} reads {stale[source].name}, which this graph updates",
                    hint="read the tensor that the last set_rows returned, the one given to ctx.update",
                )
    for t in outputs:
        if t in stale:
            raise GraphError(f"{t.name} is an output and {stale[t].name} is updated by the same graph")
