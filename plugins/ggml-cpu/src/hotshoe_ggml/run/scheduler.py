"""Scheduler: the compute buffers that the graphs of a backend share, and where each node of a graph runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotshoe_ggml.native import build_info, ffi, ggml_functions, kernels, lib
from hotshoe_ggml.native.context import OutOfMemory, require_memory
from hotshoe_ggml.unit import Unit

__all__ = ["ScheduledGraph", "Scheduler"]

_PLANNED = 32 << 10
"""More bytes than planning allocates for each tensor. ggml ends the process if that fails.

It is ten times as much, because glibc keeps freed memory in the process up to twice the largest block that was freed
before. With less, each array of logits took new pages: prompts of a small model were 15 % slower.
"""


class Scheduler:
    """Buffers with the temporaries of one graph at a time. They grow to the size of the largest graph.

    So all graphs together take the memory of one. A graph keeps its addresses while the buffers stay as they are, also
    if other graphs are computed in between.
    """

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.native: Any = ffi.NULL
        self._schedules: set[ScheduledGraph] = set()

    def add(self, graph: ScheduledGraph) -> None:
        """Plan a graph. Raises OutOfMemory for memory of the host."""
        require_memory(graph.n_tensors * _PLANNED)
        if self.native == ffi.NULL:
            self.native = self._new_arena()
        if self.native == ffi.NULL:
            raise OutOfMemory(graph.n_tensors * _PLANNED)
        graph.native = kernels().hotshoe_schedule_new(
            self.native, graph.cgraph, graph.units, graph.inputs, len(graph.inputs)
        )
        if graph.native == ffi.NULL:
            self.forget(graph)
            raise OutOfMemory(graph.n_tensors * _PLANNED)
        self._schedules.add(graph)

    def _new_arena(self) -> Any:
        backends = [unit.ggml_backend for unit in self.units]
        types = [unit.buffer_type for unit in self.units]
        # What the CPU computes for a device lies where the device reads it best.
        pinned = [unit.host_buffer_type for unit in self.units if unit.host_buffer_type != ffi.NULL]
        types[-1] = pinned[0] if pinned and len(types) > 1 else types[-1]
        reorders = ffi.string(lib().ggml_version()).decode() == build_info().ggml_version
        capturing = sum(unit.captures << i for i, unit in enumerate(self.units))
        return kernels().hotshoe_arena_new(ggml_functions(), backends, types, len(types), reorders, capturing)

    def measure(self, graph: ScheduledGraph) -> dict[str, int]:
        """Bytes by unit that the graph needs by itself. Allocates no buffer; the graph loses its memory.

        Raises OutOfMemory for memory of the host.
        """
        require_memory(graph.n_tensors * _PLANNED)
        sizes = ffi.new("size_t[]", len(self.units))
        kernels().hotshoe_schedule_sizes(graph.native, sizes)
        return {unit.name: int(size) for unit, size in zip(self.units, sizes)}

    def sizes(self) -> Mapping[str, int]:
        """Bytes of the buffers by unit."""
        if self.native == ffi.NULL:
            return {}
        size = kernels().hotshoe_arena_size
        return {unit.name: int(size(self.native, i)) for i, unit in enumerate(self.units)}

    def grows(self, graph: ScheduledGraph) -> bool:
        """Whether ``allocate`` may move buffers, which a running graph uses.

        Raises OutOfMemory for memory of the host.
        """
        require_memory(graph.n_tensors * _PLANNED)
        return bool(kernels().hotshoe_schedule_grows(graph.native))

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

    n_tensors: at least the number of its nodes and leaves. units: the number of the unit of each node, int8; NULL if
    there is only one unit. inputs: the graph's inputs.
    """

    def __init__(self, cgraph: Any, n_tensors: int, units: Any, inputs: Sequence[Any]) -> None:
        self.cgraph = cgraph
        self.n_tensors = n_tensors
        self.units = units
        self.inputs = inputs
        self.native: Any = ffi.NULL

    def unit(self, tensor: Any) -> int:
        """The number of the unit that computes a node, or of the only one that reads an input; -1 for other tensors."""
        return int(kernels().hotshoe_schedule_unit(self.native, tensor))

    @property
    def n_splits(self) -> int:
        """How many parts the graph has, each on one unit."""
        return int(kernels().hotshoe_schedule_n_splits(self.native))

    @property
    def n_copies(self) -> int:
        """Values that are copied between units in each run."""
        return int(kernels().hotshoe_schedule_n_copies(self.native))
