"""A graph as a flat program for an eager library: where each node runs, what crosses devices, what is dropped when."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hotshoe_core.contract.backend import Placement
from hotshoe_core.graphs.graph import Graph, is_view
from hotshoe_core.graphs.splits import node_places
from hotshoe_core.ops.bounds import are_within
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor

if TYPE_CHECKING:
    from hotshoe_core.eager.adapter import EagerLibrary

__all__ = ["Program", "compile_program"]

Native = Any
_SELECT = frozenset({"take", "take_along", "pad"})  # F32 too, but of few elements of what may be a large table
NOTHING = -1  # the slot of an absent source; the last one of the environment, which stays None


class Step(NamedTuple):
    """One call: ``env[slot] = function(*sources, **attrs)``; ``dead`` slots are dropped after it."""

    function: Callable[..., Native]
    sources: tuple[int, ...]
    attrs: Mapping[str, Any]
    slot: int
    dead: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """What an executable runs.

    run: takes the values of the graph's leaves; returns those of the outputs, and then the new ones of ``states``.
    overwritten: those of the states whose rows the graph writes in place. scope: to be entered around ``run``.
    devices: of every tensor. peak: bytes of temporaries at most, by device, as the library counts them.
    """

    run: Callable[[list[Native]], list[Native]]
    outputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    overwritten: tuple[Tensor, ...]
    scope: Callable[[], contextlib.AbstractContextManager[None]]
    devices: Mapping[Tensor, str]
    peak: Mapping[str, int]


def compile_program(
    graph: Graph, home: Callable[[Tensor], str], placement: Placement, libraries: Mapping[str, EagerLibrary]
) -> Program:
    """The program of a graph over these devices, each with its library. ``home``: which holds a weight or state."""
    devices = _devices(graph, home, placement, libraries)
    builder = _Builder(graph, devices, libraries)
    for node in graph.nodes:
        builder.add(node)
    updates = {state: new for state, new in graph.updates.items() if new is not state}
    results = [builder.result(t) for t in graph.outputs]
    results += [builder.update(state, new) for state, new in updates.items()]
    run = _runner(builder.finish(set(results)), len(graph.leaves), builder.n_slots, results)
    overwritten = tuple(s for s, new in updates.items() if new in graph.in_place)
    scopes = [library.scope for library in libraries.values()]
    scope = scopes[0] if len(scopes) == 1 else contextlib.nullcontext  # of several, each step enters its own
    return Program(run, graph.outputs, tuple(updates), overwritten, scope, devices, _peak(graph, devices, libraries))


def _devices(
    graph: Graph, home: Callable[[Tensor], str], placement: Placement, libraries: Mapping[str, EagerLibrary]
) -> dict[Tensor, str]:
    """Nodes are where the placement means them, if that device has the op; inputs and constants with their reader."""
    devices = {t: home(t) for t in graph.leaves if t.op in ("weight", "state")}
    meant = node_places(graph, placement, home)
    for node in graph.nodes:
        device = meant[node]
        if not libraries[device].has(node):
            device = next(name for name, library in libraries.items() if library.has(node))
        devices[node] = device
        for s in node.sources:
            if s is not None:
                devices.setdefault(s, device)  # an input or a constant
    for t in graph.leaves:
        devices.setdefault(t, placement.device(t.layer))
    return devices


class _Builder:
    """Steps in order, with slots for values: leaves first, then what steps make."""

    def __init__(self, graph: Graph, devices: Mapping[Tensor, str], libraries: Mapping[str, EagerLibrary]) -> None:
        self._graph = graph
        self._devices = devices
        self._libraries = libraries
        self._steps: list[Step] = []
        self._slots = {(t, devices[t]): i for i, t in enumerate(graph.leaves)}
        self.n_slots = len(graph.leaves)

    def add(self, node: Tensor) -> None:
        device = self._devices[node]
        library, attrs = self._libraries[device], node.attrs
        sources = [NOTHING if s is None else self._on(s, device) for s in node.sources]
        for rows, at, axis in () if library.checks_indices else TABLE[node.op].indexed:
            sources[at] = self._clipped(node, rows, at, axis, sources[at], device)
        if "dtype" in attrs and attrs["dtype"] not in library.dtypes:  # of a cast, or of rows to be written
            sources[-1] = self._step(device, library.rounded, (sources[-1],), {"dtype": attrs["dtype"]})
            if node.op == "cast":
                self._slots[node, device] = sources[-1]
                return
            attrs = {**attrs, "dtype": DType.F32}
        widened = library.f32 is not None and not _keeps_type(node)
        if widened and node.op not in _SELECT:
            sources = [self._in_f32(s, slot, device) for s, slot in zip(node.sources, sources)]
        slot = self._step(device, self._function(node, device), tuple(sources), attrs)
        if widened and node.op in _SELECT:
            slot = self._in_f32(node.sources[0], slot, device)
        self._slots[node, device] = slot

    def _function(self, node: Tensor, device: str) -> Callable[..., Native]:
        """What computes a node on its device."""
        library, source = self._libraries[device], node.sources[0]
        assert source is not None  # no op begins with an optional operand
        if node in self._graph.in_place and node.op in library.in_place and self._devices[source] == device:
            return library.in_place[node.op]
        if node.op in ("floor_divide", "mod") and node.dtype.is_integer:
            return _divided(node.op, node.dtype, library)
        copy = library.copy
        if node.op == "cast" and copy is not None and library.held(source.dtype) is library.held(node.dtype):
            return lambda x, *, dtype: copy(x)  # the library's own may give x itself, which may be overwritten later
        return library.function(node.op)

    def _in_f32(self, t: Tensor | None, slot: int, device: str) -> int:
        """The slot of a float operand as F32; of any other itself."""
        library = self._libraries[device]
        if library.f32 is None or t is None or not t.dtype.is_float or library.held(t.dtype) is DType.F32:
            return slot
        return self._step(device, library.f32, (slot,), {})

    def _clipped(self, node: Tensor, rows: int, at: int, axis: int, slot: int, device: str) -> int:
        """The slot of indices that a library may use unchecked."""
        source, indices = node.sources[rows], node.sources[at]
        assert source is not None
        assert indices is not None
        n = source.shape[axis]
        if are_within(indices, n):
            return slot
        return self._step(device, self._libraries[device].function("clamp"), (slot,), {"min": 0, "max": n - 1})

    def result(self, t: Tensor) -> int:
        """The slot of an output. What lies in a state's memory is copied: a later step may overwrite it."""
        device = self._devices[t]
        library, slot = self._libraries[device], self._slots[t, device]
        if library.copy is not None and library.in_place and self._graph.state_behind(t) is not None:
            return self._step(device, library.copy, (slot,), {})
        return slot

    def update(self, state: Tensor, new: Tensor) -> int:
        """The slot of a state's new value, on the state's device and in memory of its own."""
        device = self._devices[state]
        library, slot = self._libraries[device], self._on(new, device)
        if library.copy is not None and library.in_place and self._graph.state_behind(new) is not state:
            return self._step(device, library.copy, (slot,), {})
        return slot

    def finish(self, kept: set[int]) -> list[Step]:
        """The steps, each with the slots that nothing reads after it."""
        last_use = {s: i for i, step in enumerate(self._steps) for s in step.sources}
        unread = {step.slot for step in self._steps} - last_use.keys()
        finished = []
        for i, step in enumerate(self._steps):
            dead = {s for s in step.sources if s != NOTHING and last_use[s] == i} | ({step.slot} & unread)
            finished.append(step._replace(dead=tuple(dead - kept)))
        return finished

    def _on(self, t: Tensor, device: str) -> int:
        """The slot of a value on a device, brought there if it is on another."""
        if (t, device) not in self._slots:
            home = self._devices[t]
            receive = self._libraries[device].receive or _through_numpy(
                self._libraries[home], self._libraries[device], t.dtype
            )
            self._slots[t, device] = self._step(device, receive, (self._slots[t, home],), {})
        return self._slots[t, device]

    def _step(
        self, device: str, function: Callable[..., Native], sources: tuple[int, ...], attrs: Mapping[str, Any]
    ) -> int:
        scope = self._libraries[device].scope
        if len(self._libraries) > 1 and scope is not contextlib.nullcontext:
            function = _within(scope, function)
        self._steps.append(Step(function, sources, attrs, self.n_slots))
        self.n_slots += 1
        return self.n_slots - 1


def _keeps_type(node: Tensor) -> bool:
    """Whether floats keep the type that they are stored in. All else is arithmetic, and gives F32."""
    op = TABLE[node.op]
    return op.movement or op.overwrites or op.name in ("cast", "concat")


def _divided(op: str, dtype: DType, library: EagerLibrary) -> Callable[[Native, Native], Native]:
    """Division of integers that ends no process: not by 0, and not by -1, where the quotient of the least overflows."""
    divide, equal, where, neg = map(library.function, (op, "equal", "where", "neg"))

    def call(a: Native, b: Native) -> Native:
        zero, one, minus_one = (library.array(np.array(n, dtype.numpy), dtype) for n in (0, 1, -1))
        by_zero, by_minus_one = equal(b, zero), equal(b, minus_one)
        quotient_or_rest = divide(a, where(by_zero, one, where(by_minus_one, one, b)))
        turned = neg(a) if op == "floor_divide" else zero
        return where(by_zero, zero, where(by_minus_one, turned, quotient_or_rest))

    return call


def _within(
    scope: Callable[[], contextlib.AbstractContextManager[None]], function: Callable[..., Native]
) -> Callable[..., Native]:
    def call(*sources: Native, **attrs: Any) -> Native:
        with scope():
            return function(*sources, **attrs)

    return call


def _through_numpy(home: EagerLibrary, there: EagerLibrary, dtype: DType) -> Callable[[Native], Native]:
    return lambda value: there.array(np.array(home.to_numpy(value)), dtype)


def _runner(
    steps: Sequence[Step], n_leaves: int, n_slots: int, results: Sequence[int]
) -> Callable[[list[Native]], list[Native]]:
    def run(given: list[Native]) -> list[Native]:
        env: list[Native] = [*given, *[None] * (n_slots - n_leaves + 1)]
        for function, sources, attrs, slot, dead in steps:
            env[slot] = function(*[env[s] for s in sources], **attrs)
            for s in dead:
                env[s] = None
        return [env[s] for s in results]

    return run


def _peak(graph: Graph, devices: Mapping[Tensor, str], libraries: Mapping[str, EagerLibrary]) -> dict[str, int]:
    """The most bytes that inputs and temporaries take at once. A view takes none, and keeps what it shows alive."""
    owner: dict[Tensor | None, Tensor] = {}
    last: dict[Tensor, int] = {}
    for t in (*graph.leaves, *graph.nodes):
        owner[t] = owner[t.sources[0]] if is_view(t) or t in graph.in_place else t
    for i, node in enumerate(graph.nodes):
        for s in (node, *node.sources):
            if s is not None:
                last[owner[s]] = i
    for t in (*graph.outputs, *graph.updates.values()):
        last[owner[t]] = len(graph.nodes)
    ends: dict[int, list[Tensor]] = {}
    for t, i in last.items():
        if not t.is_leaf:  # inputs stay: the next run may be fed others only
            ends.setdefault(i, []).append(t)
    live = dict.fromkeys(libraries, 0)
    for t in graph.inputs:
        live[devices[t]] += libraries[devices[t]].size(t.shape, t.dtype)
    most = dict(live)
    for i, node in enumerate(graph.nodes):
        if owner[node] is node:
            device = devices[node]
            live[device] += libraries[device].size(node.shape, node.dtype)
            most[device] = max(most[device], live[device])
        for t in ends.get(i, ()):
            live[devices[t]] -= libraries[devices[t]].size(t.shape, t.dtype)
    return most
