"""Scheduler: the compute buffers that the graphs of a backend share, and where each node of a graph runs."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe_ggml.native import build_info, ffi, kernels, lib
from hotshoe_ggml.native.context import OutOfMemory, require_memory
from hotshoe_ggml.run.assign import units_of_inputs
from hotshoe_ggml.unit import Unit

__all__ = ["ScheduledGraph", "Scheduler"]

_PLANNED = 2 << 10
"""Bytes that planning allocates for each tensor, rounded up. ggml ends the process if that fails."""


@functools.cache
def _ggml() -> Any:
    """The functions of libggml-base that the native scheduler calls."""
    g = lib()
    table = ffi.new("struct hotshoe_ggml *")
    for name, _ in ffi.typeof("struct hotshoe_ggml").fields:
        prefix = "ggml_" if name.startswith(("gallocr_", "nbytes")) else "ggml_backend_"
        setattr(table, name, ffi.addressof(g, prefix + name))
    return table


class Scheduler:
    """Buffers with the temporaries of one graph at a time. They grow to the size of the largest graph.

    So all graphs together take the memory of one. A graph keeps its addresses while the buffers stay as they are, also
    if other graphs are computed in between.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.native: Any = ffi.NULL
        self._types = [unit.buffer_type for unit in units]
        # What the CPU computes for a device lies where the device reads it best.
        pinned = [unit.host_buffer_type for unit in units if unit.host_buffer_type != ffi.NULL]
        self._types[-1] = pinned[0] if pinned and len(units) > 1 else self._types[-1]
        self._schedules: set[ScheduledGraph] = set()

    def add(self, graph: ScheduledGraph) -> None:
        """Plan a graph. Raises OutOfMemory for memory of the host."""
        require_memory(graph.n_tensors * _PLANNED)
        if self.native == ffi.NULL:
            backends = [unit.ggml_backend for unit in self.units]
            reorders = ffi.string(lib().ggml_version()).decode() == build_info().ggml_version
            self.native = kernels().hotshoe_arena_new(_ggml(), backends, self._types, len(backends), reorders)
        inputs = [tensor for tensor, _ in graph.input_units]
        numbers = {unit: i for i, unit in enumerate(self.units)}
        graph.native = kernels().hotshoe_schedule_new(
            self.native,
            graph.cgraph,
            [numbers[unit] for _, unit in graph.node_units] or ffi.NULL,
            inputs,
            [numbers[unit] for _, unit in graph.input_units],
            len(inputs),
        )
        if ffi.NULL in (self.native, graph.native):
            raise OutOfMemory(graph.n_tensors * _PLANNED)
        self._schedules.add(graph)

    def measure(self, graph: ScheduledGraph) -> dict[str, int]:
        """Bytes by unit that the graph needs by itself. Allocates nothing; the graph loses its memory."""
        sizes = ffi.new("size_t[]", len(self.units))
        kernels().hotshoe_schedule_sizes(graph.native, sizes)
        return {unit.name: int(size) for unit, size in zip(self.units, sizes)}

    def sizes(self) -> Mapping[str, int]:
        """Bytes of the buffers by unit."""
        if self.native == ffi.NULL:
            return {}
        size = kernels().hotshoe_arena_size
        return {unit.name: int(size(self.native, i)) for i, unit in enumerate(self.units)}

    def allocate(self, graph: ScheduledGraph) -> None:
        """Give the graph its memory, unless it has it. Raises OutOfMemory; then no graph has memory."""
        if kernels().hotshoe_schedule_allocate(graph.native):
            return
        # the error names the unit that lacks most memory, and what the graph needs on it
        sizes = self.measure(graph)
        several = len(self.units) > 1
        unit = max(self.units, key=lambda unit: sizes[unit.name] - unit.memory_free()) if several else self.units[0]
        raise OutOfMemory(sizes[unit.name], unit.name)

    def compute(self, graph: ScheduledGraph) -> int:
        """Queue the graph on its units. Returns ggml's status."""
        return int(kernels().hotshoe_schedule_compute(graph.native))

    def synchronize(self) -> None:
        """Wait for all that is queued on the units."""
        kernels().hotshoe_arena_synchronize(self.native)

    def forget(self, graph: ScheduledGraph) -> None:
        """Forget a graph that does not run any more. After the last one all buffers are freed."""
        self._schedules.discard(graph)
        kernels().hotshoe_schedule_free(graph.native)
        graph.native = ffi.NULL
        if not self._schedules:
            kernels().hotshoe_arena_free(self.native)
            self.native = ffi.NULL


class ScheduledGraph:
    """A ggml graph, and the unit of each of its nodes.

    n_tensors: at least the number of its nodes and leaves. units: the unit of each node; empty if there is only one unit.
    inputs: the graph's inputs.

    node_units: the nodes and their units, in the order in which the nodes were built. ggml's order in the graph may
    differ: preparing a graph for Vulkan changes it. input_units: each input that only one unit reads, with that unit,
    in whose memory it lies.
    """

    def __init__(self, cgraph: Any, n_tensors: int, units: Sequence[Unit], inputs: Sequence[Any]) -> None:
        self.cgraph = cgraph
        self.n_tensors = n_tensors
        self.node_units = [(lib().ggml_graph_node(cgraph, i), unit) for i, unit in enumerate(units)]
        self.input_units = units_of_inputs(self.node_units, inputs)
        self.native: Any = ffi.NULL

    @property
    def n_splits(self) -> int:
        """How often the device changes in a run, and once more."""
        return int(kernels().hotshoe_schedule_n_splits(self.native))

    @property
    def n_copies(self) -> int:
        """Values that are copied between units in each run."""
        return int(kernels().hotshoe_schedule_n_copies(self.native))
