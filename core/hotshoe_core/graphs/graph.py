"""Graph: tensors in topological order, and the decomposition of ops that a backend cannot lower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import hotshoe_core.ops  # noqa: F401  (fills the op table)
from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.tensors.scope import scope
from hotshoe_core.tensors.tensor import TABLE, Tensor

__all__ = ["Graph", "is_view", "lower"]


def is_view(t: Tensor) -> bool:
    """Whether the value may be in the memory of its first source."""
    op = TABLE.get(t.op)  # None for a leaf
    return op is not None and op.movement


@dataclass(frozen=True, slots=True)
class Graph:
    """What a backend compiles: it computes ``nodes`` in their order, then the ``updates``.

    Every read of a state in the graph gives its value from before the run.
    """

    nodes: tuple[Tensor, ...]
    """The tensors to compute, each one after its sources."""

    leaves: tuple[Tensor, ...]
    """Weights, states, inputs and constants."""

    outputs: tuple[Tensor, ...]

    updates: Mapping[Tensor, Tensor]
    """For each state that the graph updates: the tensor whose value it gets after the run."""

    in_place: frozenset[Tensor] = frozenset()
    """Overwriting nodes (set_rows) between a state and its update that may work in the memory of their first source.

    In the order of ``nodes``, nothing reads the old value of that memory after them. If the update of a state is such a
    node, the state has its new value without a copy.
    """

    decomposed: tuple[tuple[str, str], ...] = ()
    """The composites that core replaced, as (node name, op)."""

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
        """The leaves that are fed at each compute."""
        return tuple(t for t in self.leaves if t.op == "input")

    def state_behind(self, tensor: Tensor) -> Tensor | None:
        """The state in whose memory this value may be, through views and nodes in place; or None."""
        t = tensor
        while is_view(t) or t in self.in_place:
            t = t.source(0)
        return t if t.op == "state" else None


def lower(graph: Graph, supports: Callable[[Tensor], bool]) -> tuple[Graph, dict[Tensor, Tensor]]:
    """Replace every composite that ``supports`` refuses by its decomposition, until no such composite is left.

    Returns the new graph, and for each output of the old graph the tensor that replaces it.
    Raises UnsupportedOpError if ``supports`` refuses a primitive.
    """
    lowering = _Lowering(supports)
    replaced, decomposed = lowering.replaced, lowering.decomposed
    for node in graph.nodes:
        is_kept = not decomposed and supports(node)  # most graphs have nothing to replace
        replaced[node] = node if is_kept else lowering.lowered(node)
    outputs = {t: replaced.get(t, t) for t in graph.outputs}
    if not decomposed:
        return graph, outputs
    updates = {state: replaced.get(new, new) for state, new in graph.updates.items()}
    new = Graph.trace(tuple(outputs.values()), updates)
    return replace(new, decomposed=tuple(decomposed)), outputs


class _Lowering:
    """What ``lower`` did so far. A function inside of it would keep all tensors until a garbage collection."""

    def __init__(self, supports: Callable[[Tensor], bool]) -> None:
        self.supports = supports
        self.replaced: dict[Tensor, Tensor] = {}
        self.decomposed: list[tuple[str, str]] = []

    def lowered(self, node: Tensor) -> Tensor:
        """Return the tensor that replaces ``node``, whose sources are lowered. Raises UnsupportedOpError."""
        sources = tuple(None if s is None else self.replaced.get(s, s) for s in node.sources)
        if any(a is not b for a, b in zip(sources, node.sources)):
            node = Tensor(
                node.op, sources, node.attrs, node.shape, node.dtype,
                name=node.name, context=node.context, layer=node.layer,
            )  # fmt: skip
        if self.supports(node):
            return node
        op = TABLE[node.op]
        if not op.composite:
            raise UnsupportedOpError(
                f"{node.name}: the backend has no lowering for the primitive op {node.op} with "
                + ", ".join(repr(s) for s in node.sources if s is not None)
            )
        self.decomposed.append((node.name, node.op))
        with scope(node.name, node.layer):
            expression: Tensor = op.body(*node.sources, **node.attrs)
        for inner in _topological((expression,), stop=set(node.sources)):
            if not inner.is_leaf:
                self.replaced[inner] = self.lowered(inner)
        return self.replaced.get(expression, expression)


def _topological(
    roots: Iterable[Tensor],
    stop: set[Tensor | None] | None = None,
    before: Mapping[Tensor, Sequence[Tensor]] | None = None,
) -> list[Tensor]:
    """Sort tensors so that sources come before the nodes that read them, and ``before[t]`` comes before ``t``.

    Depth first without recursion, because a deep model would exceed Python's recursion limit.
    """
    done: set[Tensor | None] = set(stop or ())
    order: list[Tensor] = []
    stack = list(roots)[::-1]
    while stack:
        t = stack[-1]
        if t not in done:
            sources = t.sources if before is None else (*before.get(t, ()), *t.sources)
            waiting = [s for s in sources if s is not None and s not in done]
            if waiting:
                stack += waiting[::-1]
                continue
            done.add(t)
            order.append(t)
        stack.pop()
    return order


def _plan_in_place(
    ordered: Sequence[Tensor], outputs: Sequence[Tensor], updates: Mapping[Tensor, Tensor]
) -> tuple[frozenset[Tensor], dict[Tensor, list[Tensor]]]:
    """The overwriting nodes that may work in place, and the nodes that must be computed before each of them.

    A node may overwrite its source if all readers of the source's value can be computed earlier: if the value is not
    needed after the run, and no reader depends on the node itself.
    """
    writes = [node for state, new in updates.items() for node in _writes(state, new)]
    if not writes:
        return frozenset(), {}
    owner: dict[Tensor, Tensor] = {}  # for each view: the tensor in whose memory it is
    readers: dict[Tensor, list[tuple[Tensor, int]]] = {node.source(0): [] for node in writes}  # node and source's index
    for t in ordered:
        if is_view(t):
            owner[t] = owner.get(t.source(0), t.source(0))
            continue
        for i, source in enumerate(t.sources):
            if source is not None:
                value = owner.get(source, source)
                if value in readers:
                    readers[value].append((t, i))
    kept = {owner.get(t, t) for t in (*outputs, *updates.values())}
    in_place: set[Tensor] = set()
    before: dict[Tensor, list[Tensor]] = {}
    for node in writes:
        value = node.source(0)
        others = [r for r, i in readers[value] if (r, i) != (node, 0)]
        if value not in kept and not _depend(others, node, before):
            in_place.add(node)
            if others:
                before[node] = others
    return frozenset(in_place), before


def _writes(state: Tensor, new: Tensor) -> list[Tensor]:
    """The overwriting nodes that lead from ``state`` to ``new``, in order; [] if other nodes lead there."""
    writes = []
    t = new
    while not t.is_leaf and TABLE[t.op].overwrites:
        writes.append(t)
        t = t.source(0)
    return writes[::-1] if t is state else []


def _depend(tensors: Sequence[Tensor], node: Tensor, before: Mapping[Tensor, Sequence[Tensor]]) -> bool:
    """Whether one of ``tensors`` is ``node``, or must be computed after it."""
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
