"""Errors in what is held and what the memory report says: see adapters.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe_core.contract.memory import AllocationStatus, BackendMemory, Memory
from hotshoe_core.eager.adapter import EagerBackend, EagerExecutable
from hotshoe_core.eager.reference import numpy_library
from hotshoe_core.errors import ClosedError, InsufficientMemoryError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from tests.core.mutants.adapters import Array, Patch, backend, each, executable, f4, library, of_patches
from tests.core.mutants.mutant import Mutant

__all__ = ["mutants"]

# What is held


def never_given_back(self: EagerExecutable) -> None:
    self._values.clear()


def released_never(self: EagerBackend, tensors: Sequence[Tensor]) -> None:
    pass


def released_but_used(self: EagerBackend, tensors: Sequence[Tensor]) -> None:
    for t in tensors:
        self._allocations.pop(t, None)


def released_but_reported(self: EagerBackend, tensors: Sequence[Tensor]) -> None:
    for t in tensors:
        t.handle = None


def released_once(self: EagerBackend, tensors: Sequence[Tensor]) -> None:
    if any(t not in self._allocations for t in tensors):
        raise ClosedError("released already")
    EagerBackend.release(self, tensors)


def released_but_kept(self: EagerBackend, tensors: Sequence[Tensor]) -> None:
    self.__dict__.setdefault("_kept", []).extend(t.handle for t in tensors)
    EagerBackend.release(self, tensors)


def graph_closed_but_kept(self: EagerExecutable) -> None:
    self._backend._graphs.pop(self, None)
    self._backend.__dict__.setdefault("_kept", []).append(self)


def backend_closed_but_kept(self: EagerBackend) -> None:
    self._closed = True


def zeros_for_absurd_sizes(op: str) -> Callable[..., Any]:
    """The op, but zeros instead of what no memory can hold."""

    def call(x: Array, **attrs: Any) -> Array:
        if x.size < 2**40:
            return np.asarray(numpy_library().functions[op](x, **attrs))
        return np.broadcast_to(f4(0), x.shape) if op == "affine" else np.zeros(x.shape[:-1], f4)

    return call


def rows_lost(self: EagerExecutable) -> None:
    before = {state: state.handle for state in self._program.states}
    EagerExecutable.run(self)
    if any(node.op == "set_rows" for node in self._graph.nodes):
        for state, value in before.items():
            state.handle = value


# What is said of memory


def reported(change: Callable[[Any], None]) -> Patch:
    """A wrong memory report: ``change`` is called for each device of the report."""

    def memory(self: EagerBackend) -> BackendMemory:
        report = EagerBackend.memory(self)
        for device in report.devices:
            change(device)
        return report

    return backend(memory=memory)


def one_layer(device: Any) -> None:
    device.weights = {-1: Memory(sum(m.size for m in device.weights.values()))} if device.weights else {}


def cache_as_weights(device: Any) -> None:
    for layer, size in device.cache.items():
        device.weights[layer] = Memory(device.weights.get(layer, Memory()).size + size.size, size.status)
    device.cache.clear()


def no_graphs(device: Any) -> None:
    device.graph = Memory(0, device.graph.status)


def all_allocated(device: Any) -> None:
    for parts in (device.weights, device.cache):
        parts.update({layer: Memory(m.size, AllocationStatus.ALLOCATED) for layer, m in parts.items()})


def no_breakdown(self: EagerBackend, *args: Any) -> Any:
    raise InsufficientMemoryError("no memory", memory=BackendMemory())


def recorded_before_allocation(
    self: EagerBackend, tensor: Tensor, device: str, size: int, make: Callable[[], Any]
) -> Tensor:
    self._allocations[tensor] = device, Memory(size, self._status)
    return EagerBackend._allocate(self, tensor, device, size, make)


def never_dry(right: EagerBackend) -> None:
    right.params = replace(right.params, allocate=True)


def twice_the_weights(device: Any) -> None:
    device.weights = {layer: Memory(2 * m.size, m.status) for layer, m in device.weights.items()}


def twice_the_cache(device: Any) -> None:
    device.cache = {layer: Memory(2 * m.size, m.status) for layer, m in device.cache.items()}


def free(n: int) -> Patch:
    return backend(memory_free=lambda self: {d.name: n for d in self.devices})


zeros = library(functions={**numpy_library().functions, **{op: zeros_for_absurd_sizes(op) for op in ("affine", "sum")}})

MEMORY: Mapping[str, tuple[str, Patch]] = {
    "release: does nothing": (
        "test_released_weights_leave_the_report_and_graphs_that_use_them_are_refused",
        backend(release=released_never),
    ),
    "release: graphs go on to use it": (
        "test_released_weights_leave_the_report_and_graphs_that_use_them_are_refused",
        backend(release=released_but_used),
    ),
    "release: the report does not notice": (
        "test_released_weights_leave_the_report_and_graphs_that_use_them_are_refused",
        backend(release=released_but_reported),
    ),
    "release: twice is an error": (
        "test_released_weights_leave_the_report_and_graphs_that_use_them_are_refused",
        backend(release=released_once),
    ),
    "memory: a closed graph keeps its share": (
        "test_the_memory_report_adds_up",
        executable(close=never_given_back),
    ),
    "memory: all weights in one layer": ("test_the_memory_report_adds_up", reported(one_layer)),
    "memory: caches as weights": ("test_the_memory_report_adds_up", reported(cache_as_weights)),
    "memory: without graphs": ("test_the_memory_report_adds_up", reported(no_graphs)),
    "memory: half of what it is": (
        "test_the_memory_report_adds_up",
        library(nbytes=lambda shape, dtype: (dtype if dtype.numpy is not None else DType.F32).nbytes(shape) // 2),
    ),
    "memory: a plan is called allocated": (
        "test_a_dry_run_gives_the_same_report_and_computes_nothing",
        reported(all_allocated),
    ),
    "memory: a dry run computes": ("test_a_dry_run_gives_the_same_report_and_computes_nothing", never_dry),
    "memory: a dry run needs the memory": ("test_a_dry_run_of_what_does_not_fit", never_dry),
    "memory: a failure has no breakdown": ("test_out_of_memory_by_a_state", backend(guard=no_breakdown)),
    "memory: what failed is kept": ("test_out_of_memory_by_a_state", backend(_allocate=recorded_before_allocation)),
    "memory: a graph that failed is kept": ("test_out_of_memory_by_a_graph", executable(close=never_given_back)),
    "release: keeps the arrays": ("test_weights_are_given_back", backend(release=released_but_kept)),
    "release: keeps the values of states": ("test_states_are_given_back", backend(release=released_but_kept)),
    "close: a graph keeps its arrays": ("test_graphs_are_given_back", executable(close=graph_closed_but_kept)),
    "close: a backend keeps its states": ("test_backends_are_given_back", backend(close=backend_closed_but_kept)),
    "memory: twice the weights": ("test_sizes_are_near_the_truth", reported(twice_the_weights)),
    "memory: twice the cache": ("test_sizes_are_near_the_truth", reported(twice_the_cache)),
    "memory: 2^60 bytes are free": ("test_sizes_are_near_the_truth", free(2**60)),
    "memory: 7 bytes are free": ("test_sizes_are_near_the_truth", free(7)),
    "memory: zeros for what does not fit": (
        "test_out_of_memory_by_a_graph",
        zeros,
    ),
    "memory: rows are lost in a run that does not fail": (
        "test_a_state_after_a_run_that_fails",
        each(zeros, library(in_place={}), executable(run=rows_lost)),
    ),
}


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    return of_patches(MEMORY)
