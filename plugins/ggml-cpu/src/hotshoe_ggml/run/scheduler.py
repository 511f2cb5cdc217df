"""ggml's scheduler and its compute buffers, which the graphs of a backend share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import NativeContext, OutOfMemory, is_view_op, require_memory
from hotshoe_ggml.run.assign import units_of_inputs
from hotshoe_ggml.unit import Unit

__all__ = ["ScheduledGraph", "Scheduler"]

_SCHEDULED = 32 << 10
"""Bytes that ggml's scheduler allocates for each node, rounded up. It ends the process if that fails."""


class ScheduledGraph:
    """A ggml graph, and the unit of each of its nodes.

    context: has the graph's tensors. n_tensors: at least the number of its nodes and leaves. units: the unit of each
    node; empty if there is only one unit. inputs: the graph's inputs.

    node_units: the nodes and their units, in the order in which the nodes were built. ggml's order in the graph may
    differ: preparing a graph for Vulkan changes it. input_units: each input that only one unit reads, with that unit,
    in whose memory it lies.
    """

    def __init__(
        self,
        cgraph: Any,
        context: NativeContext,
        n_tensors: int,
        units: Sequence[Unit],
        inputs: Sequence[Any],
    ) -> None:
        self.cgraph = cgraph
        self.n_tensors = n_tensors
        g = lib()
        nodes = [g.ggml_graph_node(cgraph, i) for i in range(g.ggml_graph_n_nodes(cgraph) if units else 0)]
        self.node_units = list(zip(nodes, units))
        self.input_units = units_of_inputs(self.node_units, inputs)
        computed = [(node, unit) for node, unit in self.node_units if not is_view_op(node)]
        self._assigned = [(tensor, unit.ggml_backend) for tensor, unit in (*computed, *self.input_units)]
        self._context = context
        self._as_built = context.snapshot() if units else None

    def restore(self) -> None:
        """Undo what allocating the graph changed: memory, order, and sources that copies replaced."""
        if self._as_built is not None:
            self._context.restore(self._as_built)

    def assign(self, scheduler: Any) -> None:
        """Tell ggml's scheduler where each node runs: see ``assign_units``."""
        assign = lib().ggml_backend_sched_set_tensor_backend
        for tensor, backend in self._assigned:
            assign(scheduler, tensor, backend)


class Scheduler:
    """Buffers with the temporaries of one graph at a time. They grow to the size of the largest graph.

    So all graphs together take the memory of one. A graph that is computed again keeps its addresses; if another graph
    was computed in between, it gets new ones.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self.native: Any = ffi.NULL
        self.current: ScheduledGraph | None = None
        self._units = units
        self._types = [unit.buffer_type for unit in units]
        # What the CPU computes for a device lies where the device reads it best.
        pinned = [unit.host_buffer_type for unit in units if unit.host_buffer_type != ffi.NULL]
        self._types[-1] = pinned[0] if pinned and len(units) > 1 else self._types[-1]
        self._n_tensors = 0

    def measure(self, graph: ScheduledGraph) -> dict[str, int]:
        """Bytes by unit that the graph needs by itself. Allocates nothing, and drops the current assignment.

        ggml chooses the units: it forgets those of ``ScheduledGraph`` before it measures.
        """
        self.current = None
        self._make_room(graph)
        sizes = ffi.new("size_t[]", len(self._units))
        graph.restore()
        lib().ggml_backend_sched_reserve_size(self.native, graph.cgraph, sizes)
        graph.restore()
        # units with one buffer type share a buffer: it counts for the first of them
        shared = [kind in self._types[:i] for i, kind in enumerate(self._types)]
        return {unit.name: 0 if same else int(size) for unit, same, size in zip(self._units, shared, sizes)}

    def measure_apart(self, graph: ScheduledGraph) -> dict[str, int]:
        """As ``measure``, but the buffers stay: measuring frees those that would be too small."""
        if self.current is graph:
            self.current = None
        other = Scheduler(self._units)
        try:
            return other.measure(graph)
        finally:
            other.free()

    def sizes(self) -> Mapping[str, int]:
        """Bytes of the buffers by unit."""
        if self.native == ffi.NULL:
            return {}
        size = lib().ggml_backend_sched_get_buffer_size
        return {unit.name: int(size(self.native, unit.ggml_backend)) for unit in self._units}

    def allocate(self, graph: ScheduledGraph) -> None:
        """Give the graph its memory, unless it has it. Raises OutOfMemory; then no graph has memory."""
        if self.current is graph:
            return
        g = lib()
        self.current = None
        self._make_room(graph)
        # Reserving reports a lack of memory; allocating without it crashes, and uses the plan of the previous graph if
        # that has as many nodes of sufficient size.
        self._prepare(graph)
        if not g.ggml_backend_sched_reserve(self.native, graph.cgraph):
            raise self._no_memory(graph)
        self._prepare(graph)
        if not g.ggml_backend_sched_alloc_graph(self.native, graph.cgraph):
            raise self._no_memory(graph)
        self.current = graph

    def forget(self, graph: ScheduledGraph) -> None:
        """Forget a graph that does not run any more."""
        if self.current is graph:
            self.current = None

    def free(self) -> None:
        """Free all buffers. The next graph allocates them again. Further calls do nothing."""
        self.current = None
        if self.native != ffi.NULL:
            lib().ggml_backend_sched_free(self.native)
            self.native = ffi.NULL
            self._n_tensors = 0

    def _prepare(self, graph: ScheduledGraph) -> None:
        """Assign the graph's units. First undo the last split, which replaced sources on other devices by copies."""
        lib().ggml_backend_sched_reset(self.native)
        graph.restore()
        graph.assign(self.native)

    def _make_room(self, graph: ScheduledGraph) -> None:
        """Make a larger scheduler if this one has no room for the graph's tensors, and their copies on other units."""
        n = graph.n_tensors * min(2, len(self._units))
        if n <= self._n_tensors:
            return
        self.free()
        require_memory(n * _SCHEDULED)
        backends = ffi.new("ggml_backend_t[]", [unit.ggml_backend for unit in self._units])
        buffer_types = ffi.new("ggml_backend_buffer_type_t[]", self._types)
        self.native = lib().ggml_backend_sched_new(backends, buffer_types, len(self._units), n, False, True)
        self._n_tensors = n

    def _no_memory(self, graph: ScheduledGraph) -> OutOfMemory:
        """The error of a failed allocation: the unit that lacks most memory, and what the graph needs on it."""
        graph.restore()
        sizes = ffi.new("size_t[]", len(self._units))
        lib().ggml_backend_sched_reset(self.native)
        lib().ggml_backend_sched_reserve_size(self.native, graph.cgraph, sizes)
        graph.restore()
        needs = [(int(size), unit) for size, unit in zip(sizes, self._units)]
        several = len(self._units) > 1
        size, unit = max(needs, key=lambda need: need[0] - need[1].memory_free()) if several else needs[0]
        return OutOfMemory(size, unit.name)
