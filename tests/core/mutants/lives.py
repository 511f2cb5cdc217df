"""Errors in replay, states, memory, closing, and several devices.

A row names the test or graph of the kit that must find the error, and patches the adapter over NumPy: methods of the
backend or of its executable, or a part of its library.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Backend, NodePlacement, Placement
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.contract.memory import AllocationStatus, BackendMemory, Memory
from hotshoe_core.eager.adapter import EagerBackend, EagerExecutable
from hotshoe_core.eager.reference import numpy_library, reference_device
from hotshoe_core.errors import ClosedError, InsufficientMemoryError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_core.testing import GRAPH_CASES, MultiDeviceConformance
from hotshoe_core.testing.fake import open_fake
from tests.core.mutants.mutant import Mutant, Test, subclass

__all__ = ["library", "mutants", "over_numpy", "patched"]

Array = np.ndarray[Any, Any]
Patch = Callable[[EagerBackend], None]
f4 = np.float32


def backend(**methods: Callable[..., Any]) -> Patch:
    made = subclass(EagerBackend, methods)

    def patch(right: EagerBackend) -> None:
        right.__class__ = made

    return patch


def executable(**methods: Callable[..., Any]) -> Patch:
    made = subclass(EagerExecutable, methods)

    def compile(self: EagerBackend, graph: Any) -> EagerExecutable:
        compiled = EagerBackend.compile(self, graph)
        compiled.__class__ = made
        return compiled

    return backend(compile=compile)


def library(**parts: Any) -> Patch:
    def patch(right: EagerBackend) -> None:
        right._libraries = tuple(replace(each, **parts) for each in right._libraries)

    return patch


def each(*patches: Patch) -> Patch:
    def patch(right: EagerBackend) -> None:
        for one in patches:
            one(right)

    return patch


# What is compiled


def written_once(self: EagerExecutable, tensor: Tensor, array: Array) -> None:
    if self._given[self._slots[tensor]] is None:
        EagerExecutable.write(self, tensor, array)


def kept_as_it_is(self: EagerExecutable, tensor: Tensor, array: Array) -> None:
    self._given[self._slots[tensor]] = array


def refilled(self: EagerExecutable) -> None:
    EagerExecutable.run(self)
    for tensor, out in self.__dict__.setdefault("_outs", []):
        EagerExecutable.read(self, tensor, out)


def remembered(self: EagerExecutable, tensor: Tensor, out: Array) -> None:
    EagerExecutable.read(self, tensor, out)
    self.__dict__.setdefault("_outs", []).append((tensor, out))


def read_once(self: EagerExecutable, tensor: Tensor, out: Array) -> None:
    answers = self.__dict__.setdefault("_answers", {})
    if tensor not in answers:
        EagerExecutable.read(self, tensor, out)
        answers[tensor] = out.copy()
    out[...] = answers[tensor]


def into_shared_memory(self: EagerExecutable) -> None:
    EagerExecutable.run(self)
    scratch = self._backend.__dict__.setdefault("_scratch", np.empty(1 << 12, f4))
    for tensor, value in self._values.items():
        scratch[: value.size] = value.reshape(-1)
        self._values[tensor] = scratch[: value.size].reshape(value.shape)


def without_updates(self: EagerExecutable, given: list[Any], results: list[Any]) -> None:
    self._values = dict(zip(self._program.outputs, results))


lost = executable(_finish=without_updates)


def updated_late(self: EagerExecutable, given: list[Any], results: list[Any]) -> None:
    late = self.__dict__.setdefault("_late", {})
    for state, new in late.items():
        state.handle = new
    EagerExecutable._finish(self, given, results)
    for state in self._program.states:
        late[state], state.handle = state.handle, late.get(state, np.zeros_like(state.handle))


def traced_again(self: EagerExecutable) -> None:
    EagerExecutable.run(self)
    self._backend.counters.lowered += 1


def through_the_backend(self: EagerExecutable) -> None:
    self._backend.__dict__["_current"] = self._given
    time.sleep(0.001)  # others come in between
    self._given = self._backend.__dict__["_current"]
    EagerExecutable.run(self)


def first_row_only(self: EagerBackend, rows: Array, dtype: DType, importance: Array | None = None) -> Array:
    return EagerBackend.quantize_rows(self, np.repeat(rows[:1], len(rows), axis=0), dtype, importance)


def run_at_once(self: EagerBackend, graph: Any) -> EagerExecutable:
    compiled = EagerBackend.compile(self, graph)
    for tensor in graph.inputs:
        compiled.write(tensor, np.zeros(tensor.shape, tensor.dtype.numpy or f4))
    compiled.run()
    return compiled


def never_given_back(self: EagerExecutable) -> None:
    self._values.clear()


# What is held


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


def closed_once(self: EagerBackend) -> None:
    if self._closed:
        raise ClosedError("closed already")
    EagerBackend.close(self)


def closed_never(self: EagerBackend) -> None:
    pass


def closed_but_loads(self: EagerBackend, *args: Any, **options: Any) -> Any:
    closed, self._closed = self._closed, False
    try:
        return EagerBackend.load(self, *args, **options)
    finally:
        self._closed = closed


def loaded_in_part(self: EagerBackend, weights: Any, placement: Any = None, progress: Any = None) -> Any:
    loaded = {w.name: self._load(w) for w in weights}
    for i in range(len(weights)):
        if progress is not None:
            progress((i + 1) / len(weights))
    return loaded


def almost_done(self: EagerBackend, weights: Any, placement: Any = None, progress: Any = None) -> Any:
    each = None if progress is None else lambda fraction: progress(0.99 * fraction)
    return EagerBackend.load(self, weights, placement, each)


def anybodys_state(self: EagerBackend, graph: Any) -> EagerExecutable:
    for leaf in graph.leaves:
        if leaf.op == "state" and leaf.owner is not self:
            leaf.owner = self
            self._allocations[leaf] = self.devices[0].name, Memory()
    return EagerBackend.compile(self, graph)


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


def nowhere(self: EagerExecutable) -> list[NodePlacement]:
    return [p._replace(device="somewhere") for p in EagerExecutable.placements(self)]


LIVES: Mapping[str, tuple[str, Patch]] = {
    "replay: the inputs of the first call": ("test_computing_again_builds_nothing", executable(write=written_once)),
    "replay: the answer of the first call": ("test_computing_again_builds_nothing", executable(read=read_once)),
    "replay: traced at each call": ("test_computing_again_builds_nothing", executable(run=traced_again)),
    "replay: reserving runs": ("test_reserving_is_counted_and_runs_nothing", backend(compile=run_at_once)),
    "replay: an input is the user's array": (
        "test_a_fed_array_may_be_changed_afterwards",
        executable(write=kept_as_it_is),
    ),
    "replay: an array that was read changes": (
        "test_a_read_array_is_a_copy",
        executable(run=refilled, read=remembered),
    ),
    "replay: all contexts share their outputs": (
        "test_contexts_of_one_backend_do_not_disturb_each_other",
        executable(run=into_shared_memory),
    ),
    "replay: threads share what is computed": (
        "test_threads_with_a_context_each",
        executable(run=through_the_backend),
    ),
    "replay: nodes are placed on no device": (
        "test_placements_name_every_node_and_a_device",
        executable(placements=nowhere),
    ),
    "states: an update is lost": (
        "a_state_that_is_a_function_of_itself",
        lost,
    ),
    "states: rows are lost": ("a_state_of_F32_updated_and_read", each(library(in_place={}), lost)),
    "states: rows are lost to other contexts": ("test_contexts_share_a_state", each(library(in_place={}), lost)),
    "states: an update is seen a step late": ("test_contexts_share_a_state", executable(_finish=updated_late)),
    "states: not 0 at first": (
        "test_contexts_share_a_state",
        library(zeros=lambda shape, dtype: np.ones(shape, dtype.numpy or f4)),
    ),
    "states: an update is seen too early": (
        "a_state_read_before_and_after_its_update",
        library(functions={**numpy_library().functions, "set_rows": numpy_library().in_place["set_rows"]}),
    ),
    "states: an output is the state's memory": (
        "test_an_output_keeps_its_value_when_its_state_goes_on",
        library(copy=lambda x: x),
    ),
    "states: a part is set for those who read before": (
        "a_part_of_a_state_set",
        library(functions={**numpy_library().functions, "set_slice": numpy_library().in_place["set_slice"]}),
    ),
    "states: two of one value are one": ("test_states_that_took_one_value_part_again", library(copy=lambda x: x)),
    "states: of another backend": ("test_a_state_of_another_backend_is_refused", backend(compile=anybodys_state)),
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
    "rows: all are the first": (
        "test_rows_in_blocks_are_those_of_the_format",
        backend(quantize_rows=first_row_only),
    ),
    "close: twice is an error": ("test_closing_twice_and_using_afterwards", backend(close=closed_once)),
    "close: does nothing": ("test_closing_twice_and_using_afterwards", backend(close=closed_never)),
    "close: weights can be loaded afterwards": (
        "test_closing_twice_and_using_afterwards",
        backend(load=closed_but_loads),
    ),
    "load: what was loaded before it was cancelled stays": (
        "test_a_load_that_is_cancelled_leaves_nothing",
        backend(load=loaded_in_part),
    ),
    "load: ends at 99 %": ("test_a_load_that_is_cancelled_leaves_nothing", backend(load=almost_done)),
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
}


# Several devices


def layers_forgotten(self: EagerBackend, shape: Any, dtype: DType, name: str, layer: int = -1) -> Tensor:
    return EagerBackend.state(self, shape, dtype, name)


def all_on_the_first(self: EagerBackend, weights: Any, placement: Any = None, progress: Any = None) -> Any:
    asked = self.require_placement(placement)
    loaded = EagerBackend.load(self, weights, Placement(self.devices[0].name), progress)
    self._placement = asked
    return loaded


def dry_on_the_first(self: EagerBackend, weights: Any, placement: Any = None, progress: Any = None) -> Any:
    load = EagerBackend.load if self.params.allocate else all_on_the_first
    return load(self, weights, placement, progress)


def any_name_will_do(self: EagerBackend, placement: Placement | None) -> Placement:
    known = [d.name for d in self.devices]
    if placement is not None and all(name in known for name in placement.devices):
        return placement
    return self.placement


def first_is_blamed(self: EagerBackend, device: str, what: Any, size: int, layer: int = -1) -> Any:
    return EagerBackend.guard(self, self.devices[0].name, what, size, layer)


def on_the_other(self: EagerExecutable) -> list[NodePlacement]:
    names = [d.name for d in self._backend.devices]
    return [p._replace(device=names[names.index(p.device) - 1]) for p in EagerExecutable.placements(self)]


def released_on_the_first(self: EagerBackend, tensors: Sequence[Tensor]) -> None:
    EagerBackend.release(
        self, [t for t in tensors if t in self._allocations and self.device_of_tensor(t) == self.devices[0].name]
    )


def received(change: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Patch:
    """A wrong copy between devices."""

    def patch(right: EagerBackend) -> None:
        right._libraries = tuple(replace(each, receive=change(each.receive)) for each in right._libraries)

    return patch


def once(receive: Callable[[Any], Any]) -> Callable[[Any], Any]:
    came: dict[Any, Any] = {}
    return lambda x: came.setdefault(x.array.shape, receive(x))


def shifted(receive: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        y = receive(x)
        y.array = np.roll(y.array, 1)
        return y

    return call


DEVICES: Mapping[str, tuple[str, Patch]] = {
    "devices: what crosses is what crossed first": ("test_every_placement_computes_the_same", received(once)),
    "devices: what crosses is shifted": ("test_every_placement_computes_the_same", received(shifted)),
    "devices: what crosses stays where it was": (
        "test_every_placement_computes_the_same",
        received(lambda receive: lambda x: x),
    ),
    "devices: traced at each call": ("test_computing_again_builds_nothing", executable(run=traced_again)),
    "devices: states lose their layer": (
        "test_memory_is_reported_by_device_and_layer",
        backend(state=layers_forgotten),
    ),
    "devices: all weights on the first": (
        "test_memory_is_reported_by_device_and_layer",
        backend(load=all_on_the_first),
    ),
    "devices: only the first gives back": (
        "test_memory_is_reported_by_device_and_layer",
        backend(release=released_on_the_first),
    ),
    "devices: nodes are said to run on the other": (
        "test_nodes_run_on_the_device_of_their_layer",
        executable(placements=on_the_other),
    ),
    "devices: one that is not opened is replaced": (
        "test_a_device_that_is_not_opened_is_refused",
        backend(require_placement=any_name_will_do),
    ),
    "devices: the first is blamed": ("test_a_failure_names_device_and_layer", backend(guard=first_is_blamed)),
    "devices: a plan has all on the first": ("test_a_dry_run_plans_each_device", backend(load=dry_on_the_first)),
}


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    made = {}
    for name, (test, patch) in itertools.chain(LIVES.items(), DEVICES.items()):
        kit = {"kit": MultiDeviceConformance} if name in DEVICES else {}
        right = _over_fakes if name in DEVICES else over_numpy
        made[name] = Mutant(patched(right, patch), right, _tests(test), "", **kit)
    return made


def over_numpy(params: BackendParams) -> EagerBackend:
    return EagerBackend("mutant", reference_device(), params, numpy_library())


def _over_fakes(params: BackendParams) -> EagerBackend:
    return open_fake(2, params, capacity=1 << 30)


def patched(open: Callable[[BackendParams], EagerBackend], patch: Patch) -> Callable[[BackendParams], Backend]:
    def opened(params: BackendParams) -> Backend:
        made = open(params)
        patch(made)
        return made

    return opened


def _tests(name: str) -> list[Test]:
    return [name] if name.startswith("test_") else [c for c in GRAPH_CASES if c.id == name]
