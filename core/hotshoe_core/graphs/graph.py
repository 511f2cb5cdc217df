"""Graph: tensors in topological order, and the decomposition of what a backend cannot lower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import hotshoe_core.ops  # noqa: F401  (fills the op table)
from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.tensors.tensor import TABLE, Tensor, scope

__all__ = ["Graph", "is_view", "lower"]


def is_view(t: Tensor) -> bool:
    """Whether the value may lie in the memory of its first source."""
    return not t.is_leaf and TABLE[t.op].movement


@dataclass(frozen=True, slots=True)
class Graph:
    """What a backend compiles. Every tensor stands after its sources.

    A state read in a graph has the value from before the graph ran; ``updates`` maps a state to the tensor whose
    value it takes afterwards. A backend computes ``nodes`` in their order, and then the updates.

    in_place: nodes of ops that overwrite (set_rows) on the way from a state to its update, which may work in the
    memory of their first source: in the order of ``nodes`` nothing reads that memory's old value after them. A
    state whose update is such a node has its new value without a copy. decomposed: the composites core replaced,
    as (node name, op).
    """

    nodes: tuple[Tensor, ...]
    leaves: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    updates: Mapping[Tensor, Tensor]
    in_place: frozenset[Tensor] = frozenset()
    decomposed: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def trace(cls, outputs: Sequence[Tensor], updates: Mapping[Tensor, Tensor] | None = None) -> Graph:
        """The graph that computes ``outputs`` and ``updates``."""
        updates = dict(updates or {})
        roots = (*updates.values(), *outputs, *updates)  # a state may be updated and never read
        ordered = _topological(roots)
        in_place, before = _plan_in_place(ordered, outputs, updates)
        if before:
            ordered = _topological(roots, before=before)
        nodes = tuple(t for t in ordered if not t.is_leaf)
        return cls(nodes, tuple(t for t in ordered if t.is_leaf), tuple(outputs), updates, in_place)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.leaves if t.op == "input")

    def state_behind(self, tensor: Tensor) -> Tensor | None:
        """The state in whose memory this value may lie, if there is one: through views and nodes in place."""
        t: Tensor | None = tensor
        while t is not None and (is_view(t) or t in self.in_place):
            t = t.sources[0]
        return t if t is not None and t.op == "state" else None


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
    if not decomposed:
        return graph, outputs
    updates = {state: replaced.get(new, new) for state, new in graph.updates.items()}
    new = Graph.trace(tuple(outputs.values()), updates)
    return replace(new, decomposed=tuple(decomposed)), outputs


def _topological(
    roots: Iterable[Tensor],
    stop: set[Tensor | None] | None = None,
    before: Mapping[Tensor, Sequence[Tensor]] | None = None,
) -> list[Tensor]:
    """Sources before what reads them, and ``before[t]`` before ``t``.

    Depth first without recursion: a deep model must not meet Python's recursion limit.
    """
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
            sources = t.sources if before is None else (*before.get(t, ()), *t.sources)
            stack.extend((s, False) for s in reversed(sources) if s is not None and s not in done)
    return order


def _plan_in_place(
    ordered: Sequence[Tensor], outputs: Sequence[Tensor], updates: Mapping[Tensor, Tensor]
) -> tuple[frozenset[Tensor], dict[Tensor, list[Tensor]]]:
    """Which overwriting nodes may work in place, and the nodes that must be computed before each of them.

    A node may overwrite its source if all that reads the source's value can be computed earlier: if the value is
    not wanted after the graph has run, and none of its readers depends on the node itself.
    """
    steps = [node for state, new in updates.items() for node in _steps(state, new)]
    if not steps:
        return frozenset(), {}
    owner: dict[Tensor | None, Tensor] = {}  # in whose memory a value lies, as far as views go
    readers: dict[Tensor, list[tuple[Tensor, int]]] = {}  # of that memory: the node, and which source
    for t in ordered:
        if is_view(t):
            owner[t] = owner[t.sources[0]]
            continue
        owner[t] = t
        for i, source in enumerate(t.sources):
            if source is not None:
                readers.setdefault(owner[source], []).append((t, i))
    kept = {owner[t] for t in (*outputs, *updates.values())}
    in_place: set[Tensor] = set()
    before: dict[Tensor, list[Tensor]] = {}
    for node in steps:
        value = owner[node.sources[0]]
        others = [r for r, i in readers[value] if (r, i) != (node, 0)]
        if value not in kept and not _depend(others, node, before):
            in_place.add(node)
            if others:
                before[node] = others
    return frozenset(in_place), before


def _steps(state: Tensor, new: Tensor) -> list[Tensor]:
    """The overwriting nodes that lead from ``state`` to ``new``; none if ``new`` is made in another way."""
    steps = []
    t: Tensor | None = new
    while t is not None and not t.is_leaf and TABLE[t.op].overwrites:
        steps.append(t)
        t = t.sources[0]
    return steps[::-1] if t is state else []


def _depend(tensors: Sequence[Tensor], node: Tensor, before: Mapping[Tensor, Sequence[Tensor]]) -> bool:
    """Whether one of ``tensors`` is ``node`` or must be computed after it."""
    seen: set[Tensor | None] = {None}
    pending: list[Tensor | None] = list(tensors)
    while pending:
        t = pending.pop()
        if t is node:
            return True
        if t is not None and t not in seen:
            seen.add(t)
            pending += (*t.sources, *before.get(t, ()))
    return False
