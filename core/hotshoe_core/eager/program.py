"""Compile a graph to calls of libraries: where nodes run, what crosses devices, what is freed when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hotshoe_core.contract.backend import Placement
from hotshoe_core.eager.library import EagerLibrary, Native, Run
from hotshoe_core.graphs.graph import Graph, is_view
from hotshoe_core.graphs.splits import DeviceOfTensor, node_devices
from hotshoe_core.ops.bounds import are_within
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import TABLE, Tensor

__all__ = ["Program", "Segment", "compile_program"]

_SELECT = frozenset({"take", "take_along", "pad"})  # results are made F32, not the sources: a table may be large
_ABSENT = -1  # the slot of an absent source: the last one of the environment, which stays None


class Step(NamedTuple):
    """One call: ``env[slot] = function(*sources, **attrs)``; ``sources`` are slots too."""

    device: str
    function: Callable[..., Native]
    sources: tuple[int, ...]
    attrs: Mapping[str, Any]
    slot: int
    crosses: bool
    """Whether the step copies a value between devices, or makes a NumPy array for that."""


class Segment(NamedTuple):
    """Consecutive steps on one device as one function, or one step that copies a value between devices."""

    device: str
    run: Run
    """Takes the values of the slots ``reads`` and empties that list; returns those of the slots ``writes``."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...]
    """The slots that no later segment reads."""

    donated: tuple[int, ...]
    """Indices in ``reads``: the old values of states in ``overwritten``, which nothing else reads."""

    overwritten: tuple[tuple[Tensor, int], ...]
    """States whose rows the segment overwrites, each with the slot of its new value."""

    crosses: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled graph that an executable runs. Values are in slots: first those of the graph's leaves."""

    segments: tuple[Segment, ...]

    n_slots: int

    results: tuple[int, ...]
    """The slots of the values of ``outputs``, then of the new values of ``states``."""

    outputs: tuple[Tensor, ...]

    states: tuple[Tensor, ...]
    """The states that get a new value."""

    devices: Mapping[Tensor, str]
    """The device of every tensor."""

    peak: Mapping[str, int]
    """The most bytes that temporaries take at once, by device, as the library counts them."""


def compile_program(
    graph: Graph, device_of_tensor: DeviceOfTensor, placement: Placement, libraries: Mapping[str, EagerLibrary]
) -> Program:
    """The program of a graph. ``libraries``: by device name; ``device_of_tensor``: of a weight or state.

    Raises UnsupportedOpError for a tensor of an integer type that its device does not hold.
    """
    devices = _devices(graph, device_of_tensor, placement, libraries)
    for t in (*graph.leaves, *graph.nodes):
        libraries[devices[t]].require_held(t.dtype, t.name or t.op)
    builder = _Builder(graph, devices, libraries)
    for node in graph.nodes:
        builder.add(node)
    updates = {state: new for state, new in graph.updates.items() if new is not state}
    results = [builder.result(t) for t in graph.outputs]
    results += [builder.update(state, new) for state, new in updates.items()]
    written = dict(zip(updates, results[len(graph.outputs) :]))
    overwritten = {state: slot for state, slot in written.items() if updates[state] in graph.in_place}
    return Program(
        builder.segments(results, overwritten),
        builder.n_slots,
        tuple(results),
        graph.outputs,
        tuple(updates),
        devices,
        _peak(graph, devices, libraries),
    )


def _devices(
    graph: Graph, device_of_tensor: DeviceOfTensor, placement: Placement, libraries: Mapping[str, EagerLibrary]
) -> dict[Tensor, str]:
    """The device of each tensor: a node's intended device if it has the op; inputs and constants go with a reader."""
    devices = {t: device_of_tensor(t) for t in graph.leaves if t.op in ("weight", "state")}
    intended = node_devices(graph, placement, device_of_tensor)
    for node in graph.nodes:
        device = intended[node]
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
    """Builds the steps in order. Values get slots: first the leaves, then the results of the steps."""

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
        sources = [_ABSENT if s is None else self._on(s, device) for s in node.sources]
        for rows, indices, axis in () if library.checks_indices else TABLE[node.op].indexed:
            sources[indices] = self._clamped(node.source(indices), node.source(rows).shape[axis], device)
        if "dtype" in attrs and attrs["dtype"] not in library.dtypes:  # a cast, or rows to be written
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
            slot = self._in_f32(node.source(0), slot, device)
        self._slots[node, device] = slot

    def _function(self, node: Tensor, device: str) -> Callable[..., Native]:
        """The function that computes a node on its device."""
        library, source = self._libraries[device], node.source(0)
        if node in self._graph.in_place and node.op in library.in_place and self._devices[source] == device:
            return library.in_place[node.op]
        if node.op in ("floor_divide", "mod") and node.dtype.is_integer:
            return _divided(node.op, node.dtype, library)
        copy = library.copy
        stored = library.stored_dtype
        if node.op == "cast" and copy is not None and stored(source.dtype) is stored(node.dtype):
            return lambda x, *, dtype: copy(x)  # the library's cast may return x itself, which may be overwritten later
        return library.function(node.op)

    def _in_f32(self, t: Tensor | None, slot: int, device: str) -> int:
        """The slot of a float operand converted to F32; ``slot`` itself for any other operand."""
        library = self._libraries[device]
        if library.f32 is None or t is None or not t.dtype.is_float or library.stored_dtype(t.dtype) is DType.F32:
            return slot
        return self._step(device, library.f32, (slot,), {})

    def _clamped(self, indices: Tensor, n: int, device: str) -> int:
        """The slot of ``indices`` limited to 0 … n - 1: a library may use them unchecked."""
        slot = self._on(indices, device)
        if are_within(indices, n):
            return slot
        return self._step(device, self._libraries[device].function("clamp"), (slot,), {"min": 0, "max": n - 1})

    def result(self, t: Tensor) -> int:
        """The slot of an output. A value in a state's memory is copied, because a later step may overwrite it."""
        device = self._devices[t]
        library, slot = self._libraries[device], self._slots[t, device]
        if library.copy is not None and self._graph.state_behind(t) is not None:
            return self._step(device, library.copy, (slot,), {})
        return slot

    def update(self, state: Tensor, new: Tensor) -> int:
        """The slot of a state's new value, on the state's device and in memory that nothing else uses."""
        device = self._devices[state]
        library, slot = self._libraries[device], self._on(new, device)
        if library.copy is not None and self._graph.state_behind(new) is not state:
            return self._step(device, library.copy, (slot,), {})
        return slot

    def segments(self, results: Sequence[int], overwritten: Mapping[Tensor, int]) -> tuple[Segment, ...]:
        """The steps as segments.

        results: the slots that are read after the run. overwritten: the states whose rows are written in place, and the
        slots of their new values.
        """
        groups = _grouped(self._steps)
        reads = [_reads(group) for group in groups]
        last_read = {slot: i for i, slots in enumerate(reads) for slot in slots}
        n_readers = Counter(slot for slots in reads for slot in slots)
        kept = set(results)
        segments = []
        for i, (group, given) in enumerate(zip(groups, reads)):
            written = tuple(step.slot for step in group if step.slot in kept or step.slot in last_read)
            dead = tuple(slot for slot in given if last_read[slot] == i and slot not in kept)
            states = tuple((state, slot) for state, slot in overwritten.items() if slot in written)
            old = {self._slots[state, self._devices[state]] for state, _ in states}
            free = old.intersection(dead) - {slot for slot in given if n_readers[slot] > 1}
            donated = tuple(k for k, slot in enumerate(given) if slot in free)
            run = _runner(group, given, written)
            segments.append(Segment(group[0].device, run, given, written, dead, donated, states, group[0].crosses))
        return tuple(segments)

    def _on(self, t: Tensor, device: str) -> int:
        """The slot of a value on a device. If the value is on another device, adds steps that copy it."""
        if (t, device) not in self._slots:
            source, target = self._devices[t], self._libraries[device]
            slot, receive = self._slots[t, source], target.receive
            if receive is None:  # through NumPy, in two steps: memory may be missing on either device
                to_numpy = self._libraries[source].to_numpy
                slot = self._step(source, lambda value: np.array(to_numpy(value)), (slot,), {}, crosses=True)
                receive = partial(target.array, dtype=t.dtype)
            self._slots[t, device] = self._step(device, receive, (slot,), {}, crosses=True)
        return self._slots[t, device]

    def _step(
        self,
        device: str,
        function: Callable[..., Native],
        sources: tuple[int, ...],
        attrs: Mapping[str, Any],
        *,
        crosses: bool = False,
    ) -> int:
        self._steps.append(Step(device, function, sources, attrs, self.n_slots, crosses))
        self.n_slots += 1
        return self.n_slots - 1


def _grouped(steps: Sequence[Step]) -> list[list[Step]]:
    """Divide steps into groups on one device. A copy between devices is a group of its own.

    A copy goes before the open group if that does not compute its source, so that it does not divide the group.
    """
    groups: list[list[Step]] = []
    for step in steps:
        is_open = bool(groups) and not groups[-1][0].crosses
        if step.crosses:
            made_here = is_open and any(s.slot == step.sources[0] for s in groups[-1])
            groups.insert(len(groups) - (is_open and not made_here), [step])
        elif is_open and groups[-1][0].device == step.device:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _reads(group: Sequence[Step]) -> tuple[int, ...]:
    """The slots that a group reads and does not write, in order."""
    return tuple(sorted({s for step in group for s in step.sources} - {step.slot for step in group} - {_ABSENT}))


def _keeps_type(node: Tensor) -> bool:
    """Whether the op keeps the type of floats. All other ops are arithmetic and give F32."""
    op = TABLE[node.op]
    return op.movement or op.overwrites or op.name in ("cast", "concat")


def _divided(op: str, dtype: DType, library: EagerLibrary) -> Callable[[Native, Native], Native]:
    """Integer division that cannot crash: never by 0, and never by -1, where the smallest integer overflows."""
    divide, equal, where, neg = map(library.function, (op, "equal", "where", "neg"))

    def call(a: Native, b: Native) -> Native:
        zero, one, minus_one = (library.array(np.array(n, dtype.numpy), dtype) for n in (0, 1, -1))
        by_zero, by_minus_one = equal(b, zero), equal(b, minus_one)
        quotient_or_rest = divide(a, where(by_zero, one, where(by_minus_one, one, b)))
        negated = neg(a) if op == "floor_divide" else zero
        return where(by_zero, zero, where(by_minus_one, negated, quotient_or_rest))

    return call


def _runner(steps: Sequence[Step], reads: Sequence[int], writes: Sequence[int]) -> Run:
    """The function that makes these calls. It drops each value after its last use, also from the list it is given."""
    index = {slot: i for i, slot in enumerate((*reads, *(step.slot for step in steps)))} | {_ABSENT: _ABSENT}
    last_use = {slot: i for i, step in enumerate(steps) for slot in (step.slot, *step.sources)}
    kept = {*writes, _ABSENT}
    calls = []
    for i, step in enumerate(steps):
        dead = {slot for slot in (step.slot, *step.sources) if last_use[slot] == i} - kept
        sources = [index[slot] for slot in step.sources]
        calls.append((step.function, sources, step.attrs, index[step.slot], [index[slot] for slot in dead]))
    returned = [index[slot] for slot in writes]

    def run(given: list[Native]) -> list[Native]:
        env: list[Native] = [*given, *[None] * (len(calls) + 1)]
        given.clear()
        for function, sources, attrs, slot, dead in calls:
            env[slot] = function(*[env[s] for s in sources], **attrs)
            for s in dead:
                env[s] = None
        return [env[s] for s in returned]

    return run


def _peak(graph: Graph, devices: Mapping[Tensor, str], libraries: Mapping[str, EagerLibrary]) -> dict[str, int]:
    """The most bytes that inputs and temporaries take at once. A view takes none and keeps its source alive."""
    owner: dict[Tensor, Tensor] = {}  # the tensor in whose memory a value is
    last: dict[Tensor, int] = {}  # of each owner: the last node that reads it
    for t in (*graph.leaves, *graph.nodes):
        owner[t] = owner[t.source(0)] if is_view(t) or t in graph.in_place else t
    for i, node in enumerate(graph.nodes):
        for s in (node, *node.sources):
            if s is not None:
                last[owner[s]] = i
    for t in (*graph.outputs, *graph.updates.values()):
        last[owner[t]] = len(graph.nodes)
    ends: dict[int, list[Tensor]] = {}
    for t, i in last.items():
        if not t.is_leaf:  # inputs stay: the next run may feed only some of them
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
