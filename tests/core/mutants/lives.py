"""Errors in replay, states, threads, loading and closing: see adapters.py."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import NodePlacement
from hotshoe_core.contract.memory import Memory
from hotshoe_core.eager.adapter import EagerBackend, EagerExecutable
from hotshoe_core.eager.reference import numpy_library
from hotshoe_core.errors import ClosedError
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from tests.core.mutants.adapters import Array, Patch, backend, each, executable, f4, library, of_patches
from tests.core.mutants.mutant import Mutant

__all__ = ["mutants", "traced_again"]

# What is compiled


def written_once(self: EagerExecutable, tensor: Tensor, array: Array) -> None:
    if self._env[self._slots[tensor]] is None:
        EagerExecutable.write(self, tensor, array)


def kept_as_it_is(self: EagerExecutable, tensor: Tensor, array: Array) -> None:
    self._env[self._slots[tensor]] = array


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


def deferred(self: EagerExecutable) -> bool:
    self.__dict__["_deferred"] = True
    return True


def run_when_waited_for(self: EagerExecutable) -> None:
    if self.__dict__.pop("_deferred", False):
        EagerExecutable.run(self)


def without_updates(self: EagerExecutable) -> None:
    before = {state: state.handle for state in self._program.states}
    EagerExecutable.run(self)
    for state, value in before.items():
        state.handle = value


lost = executable(run=without_updates)


def updated_late(self: EagerExecutable, results: list[Any]) -> None:
    late = self.__dict__.setdefault("_late", {})
    for state, new in late.items():
        state.handle = new
    EagerExecutable._finish(self, results)
    for state in self._program.states:
        late[state], state.handle = state.handle, late.get(state, np.zeros_like(state.handle))


def traced_again(self: EagerExecutable) -> None:
    EagerExecutable.run(self)
    self._backend.counters.traced += 1


def lowered_again(self: EagerExecutable) -> None:
    EagerExecutable.run(self)
    self._backend.counters.lowered += 1


def through_the_backend(self: EagerExecutable) -> None:
    self._backend.__dict__["_current"] = self._env
    time.sleep(0.001)  # others come in between
    self._env = self._backend.__dict__["_current"]
    EagerExecutable.run(self)


def first_row_only(self: EagerBackend, rows: Array, dtype: DType, importance: Array | None = None) -> Array:
    return EagerBackend.quantize_rows(self, np.repeat(rows[:1], len(rows), axis=0), dtype, importance)


def run_at_once(self: EagerBackend, graph: Any) -> EagerExecutable:
    compiled = EagerBackend.compile(self, graph)
    for tensor in graph.inputs:
        compiled.write(tensor, np.zeros(tensor.shape, tensor.dtype.numpy or f4))
    compiled.run()
    return compiled


def known_by(*parts: str) -> Patch:
    """A cache of compiled graphs whose key has these parts alone."""

    def compile(self: EagerBackend, graph: Graph) -> EagerExecutable:
        made = EagerBackend.compile(self, graph)
        known = self.__dict__.setdefault("_known", {}).setdefault(_key(graph, parts), made)
        made._segments, made._env = known._segments, made._env[: len(graph.leaves)]
        made._env += [None] * (known._program.n_slots - len(made._env))
        made._program = replace(made._program, results=known._program.results)
        return made

    return backend(compile=compile)


def _key(graph: Graph, parts: tuple[str, ...]) -> str:
    number = {t: i for i, t in enumerate((*graph.leaves, *graph.nodes))}
    of = {
        "ops": [n.op for n in graph.nodes],
        "shapes": [t.shape for t in number],
        "types": [t.dtype for t in number],
        "attributes": [dict(n.attrs) for n in graph.nodes],
        "wiring": [[s if s is None else number[s] for s in n.sources] for n in graph.nodes],
        "outputs": [number[t] for t in graph.outputs],
        "updates": [(number[s], number[t]) for s, t in graph.updates.items()],
    }
    return str([of[part] for part in parts])


# States and threads


def zeros_if_it_fails(self: EagerExecutable) -> None:
    try:
        EagerExecutable.run(self)
    except MemoryError:
        for state in self._program.states:
            state.handle = np.zeros_like(state.handle)
        raise


def without_a_lock(right: EagerBackend) -> None:
    def computed_slowly(self: EagerExecutable) -> list[Any]:
        results = EagerExecutable._compute(self)
        time.sleep(0.001)  # others come in between
        return results

    right.lock = contextlib.nullcontext()  # type: ignore[assignment]
    executable(_compute=computed_slowly)(right)


def states_read_early(self: EagerExecutable) -> None:
    early = {t: t.handle for _, t in self._stored}
    time.sleep(0.001)
    with self._backend.lock:
        for t, value in early.items():
            t.handle = value
        EagerExecutable.run(self)


# Loading and closing


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


def nowhere(self: EagerExecutable) -> list[NodePlacement]:
    return [p._replace(device="somewhere") for p in EagerExecutable.placements(self)]


PARTS = ("ops", "shapes", "types", "attributes", "wiring", "outputs", "updates")

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
    "replay: a run that was started lets others overtake it": (
        "test_what_was_started_is_computed_before_all_that_follows",
        executable(start=deferred, wait=run_when_waited_for),
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
    "replay: lowered at each call": ("test_computing_again_builds_nothing", executable(run=lowered_again)),
    **{
        f"replay: a compiled graph is known without its {part}": (
            f"test_graphs_that_differ_in_{'what_they_update' if part == 'updates' else 'one_thing'}",
            known_by(*(p for p in PARTS if p != part)),
        )
        for part in PARTS
        if part not in ("ops", "shapes")  # types and wiring tell ops apart, and an eager library asks for no shapes
    },
    "states: 0 after a run that fails": (
        "test_a_state_after_a_run_that_fails",
        each(library(in_place={}), executable(run=zeros_if_it_fails)),
    ),
    "threads: no lock": ("test_threads_that_update_one_state", without_a_lock),
    "threads: states are read before the lock": (
        "test_threads_that_update_one_state",
        executable(run=states_read_early),
    ),
    "types: I64 is held in 32 bits": (
        "add",
        library(from_numpy=lambda array, dtype: array.astype(np.int32) if array.dtype == np.int64 else array),
    ),
}


def mutants() -> dict[str, Mutant]:
    """All of them, by name."""
    return of_patches(LIVES)
