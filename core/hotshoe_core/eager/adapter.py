"""A Backend from a table ``{op: function over native arrays}``.

For eager, NumPy-like libraries (NumPy, PyTorch, MLX, JAX): the author writes an EagerLibrary, a table of functions and
a few conversions, and gets weights, states, placement over several devices, memory accounting and graph replay. Core
decomposes composites that are not in the table. A ``compile_hook`` can turn the whole graph into one compiled function
(``mx.compile``, ``jax.jit``); with several devices, each part that runs on one device.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from hotshoe_core.contract.backend import (
    Backend,
    CacheConfig,
    Counters,
    Executable,
    NodePlacement,
    Placement,
    Progress,
    WeightData,
)
from hotshoe_core.contract.device import BackendParams, Device
from hotshoe_core.contract.memory import AllocationStatus, BackendMemory, Memory
from hotshoe_core.eager.library import EagerLibrary, Native
from hotshoe_core.eager.program import Program, Segment, compile_program
from hotshoe_core.errors import BackendError, ClosedError, GraphError, InsufficientMemoryError
from hotshoe_core.errors.text import format_bytes
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.graphs.splits import node_devices
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.leaf_checks import require_leaf
from hotshoe_core.tensors.tensor import TABLE, Shape, Tensor

__all__ = ["EagerBackend"]


class EagerBackend(Backend):
    """A backend over one EagerLibrary for each device. A lock serialises calls."""

    def __init__(
        self,
        name: str,
        devices: Device | Sequence[Device],
        params: BackendParams,
        libraries: EagerLibrary | Sequence[EagerLibrary],
    ) -> None:
        """``devices`` and ``libraries``: one of each, or as many of each.

        Raises BackendError if their numbers differ.
        """
        self.name = name
        self.devices = (devices,) if isinstance(devices, Device) else tuple(devices)
        self.params = params
        self.counters = Counters()
        self.lock = threading.RLock()
        chosen = (libraries,) if isinstance(libraries, EagerLibrary) else tuple(libraries)
        self.independent = all(library.independent for library in chosen)
        if not self.devices or len(chosen) != len(self.devices):
            raise BackendError(
                f"{name}: got {len(self.devices)} device(s) and libraries for {len(chosen)}; expected one for each",
                hint="name one device" if len(self.devices) > 1 else None,
            )
        self._libraries = chosen
        self.honours = frozenset({"allocate"}).union(*(library.honours for library in chosen))
        self._allocations: dict[Tensor, tuple[str, Memory]] = {}  # of each weight and state: its device and size
        self._graphs: dict[EagerExecutable, None] = {}
        self._running: EagerExecutable | None = None  # was started, and is not complete

    @property
    def _status(self) -> AllocationStatus:
        return AllocationStatus.ALLOCATED if self.params.allocate else AllocationStatus.UNALLOCATED

    @property
    def libraries(self) -> Mapping[str, EagerLibrary]:
        """The library of each device, by device name."""
        return {d.name: library for d, library in zip(self.devices, self._libraries)}

    def library_of(self, layer: int) -> EagerLibrary:
        """The library of the device that holds this layer."""
        return self.libraries[self.placement.device(layer)]

    def load(
        self, weights: Sequence[WeightData], placement: Placement | None = None, progress: Progress | None = None
    ) -> dict[str, Tensor]:
        self.require_process()
        with self.lock:
            self._require_open()
            before, self._placement = self._placement, self.require_placement(placement)
            loaded: dict[str, Tensor] = {}
            try:
                total, done = sum(w.data.nbytes for w in weights) or 1, 0
                for w in weights:
                    loaded[w.key] = self._load(w)
                    done += w.data.nbytes
                    if progress is not None:
                        progress(done / total)
            except BaseException:
                self.release(list(loaded.values()))
                self._placement = before
                raise
            return loaded

    def _load(self, w: WeightData) -> Tensor:
        tensor = Tensor("weight", (), {}, w.shape, w.dtype, name=w.name, layer=w.layer)
        device = self.placement.device_of_weight(w.layer, w.uses)
        library = self.libraries[device]
        library.require_held(w.dtype, w.name)
        return self._allocate(tensor, device, library.weight_size(w), lambda: library.load(w))

    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        self.require_process()
        with self.lock:
            self._require_open()
            require_leaf("state", name, shape, dtype, layer)
            tensor = Tensor("state", (), {}, tuple(shape), dtype, name=name, layer=layer)
            device = self.placement.device_of_state(layer)
            library = self.libraries[device]
            library.require_held(dtype, name)
            size = library.size(tensor.shape, dtype)
            return self._allocate(tensor, device, size, lambda: library.zeroed(tensor.shape, dtype))

    def _allocate(self, tensor: Tensor, device: str, size: int, make: Callable[[], Native]) -> Tensor:
        what: Literal["weights", "cache"] = "weights" if tensor.op == "weight" else "cache"
        tensor.owner = self
        if self.params.allocate:
            with self.guard(device, what, size, tensor.layer):
                self.require_available(device, size)
                with self.libraries[device].scope():
                    tensor.handle = make()
        self._allocations[tensor] = device, Memory(size, self._status)
        return tensor

    def device_of_tensor(self, tensor: Tensor) -> str:
        """The device that holds a weight or state."""
        return self._allocations[tensor][0]

    def _complete(self) -> None:
        """Wait for the graph that is being computed, if there is one. The caller holds the lock."""
        if self._running is not None:
            self._running.complete()

    def release(self, tensors: Sequence[Tensor]) -> None:
        with self.lock:
            self._complete()
            for t in tensors:
                self._allocations.pop(t, None)
                t.handle = None

    def supports(self, node: Tensor) -> bool:
        if self.library_of(node.layer).has(node):
            return True
        return not TABLE[node.op].composite and any(library.has(node) for library in self.libraries.values())

    def compile(self, graph: Graph) -> EagerExecutable:
        self.require_process()
        with self.lock:
            self._require_open()
            for leaf in graph.leaves:
                if leaf.op in ("weight", "state") and leaf.owner is not self:
                    raise GraphError(f"{leaf!r} belongs to another backend than this {self.name} backend")
                if leaf.op in ("weight", "state") and leaf not in self._allocations:
                    raise ClosedError(f"{leaf!r} was released")
            executable = EagerExecutable(self, graph)
            self._graphs[executable] = None
            self.counters.compiled += 1
            return executable

    def memory(self) -> BackendMemory:
        with self.lock:
            report = BackendMemory.of(self.devices)
            for tensor, (name, size) in self._allocations.items():
                entry = report.on(name)
                by_layer = entry.weights if tensor.op == "weight" else entry.cache
                by_layer[tensor.layer] = Memory(by_layer.get(tensor.layer, Memory()).size + size.size, size.status)
                in_file = tensor.dtype.nbytes(tensor.shape)
                if tensor.op == "weight" and size.size > in_file:
                    file_size, memory_size = entry.larger.get(tensor.dtype.name, (0, 0))
                    entry.larger[tensor.dtype.name] = file_size + in_file, memory_size + size.size
            sizes = [executable.memory() for executable in self._graphs]
            for entry in report.devices:
                entry.graph = Memory(sum(m[entry.device].size for m in sizes if entry.device in m), self._status)
            return report

    def cache_config(self) -> CacheConfig:
        """The coarsest padding and lengths, the fewest rows, the types of the first device; lists if all read them."""
        configs = [library.cache_config for library in self._libraries]
        lengths = [c.lengths_per_octave for c in configs if c.lengths_per_octave is not None]
        return CacheConfig(
            max(c.padding for c in configs),
            configs[0].mask_dtype,
            min(lengths, default=None),
            configs[0].cell_dtype,
            min(c.n_rows for c in configs),
            all(c.reads_lists for c in configs),
        )

    def close(self) -> None:
        if self.is_forked_copy:
            return
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self.release(list(self._allocations))
            for executable in list(self._graphs):
                executable.close()
            for library in self._libraries:
                library.closed()

    def require_available(self, device: str, size: int) -> None:
        """Raise MemoryError if the device's library says that it has less than ``size`` bytes left."""
        available = self.libraries[device].available
        if available is not None and size > available():
            raise MemoryError

    @contextlib.contextmanager
    def guard(
        self, device: str, what: Literal["weights", "cache", "graph"], size: int, layer: int = -1
    ) -> Iterator[None]:
        """Turn a MemoryError of the library into InsufficientMemoryError with the memory breakdown."""
        try:
            yield
        except InsufficientMemoryError:
            raise
        except MemoryError:
            report = self.memory()
            report.fail(device, what, size, layer)
            raise InsufficientMemoryError(
                f"{device} cannot allocate {format_bytes(size)} for the {what}",
                memory=report,
                hint="use a smaller context or batch, a more quantized file, or another device",
            ) from None

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self.name} backend is closed")


class EagerExecutable(Executable):
    """A graph as segments, each of which is calls of one device's library or one compiled function; see Program."""

    def __init__(self, backend: EagerBackend, graph: Graph) -> None:
        self._backend = backend
        self._graph = graph
        self._libraries = backend.libraries
        self._decomposed = {name for name, _ in graph.decomposed}
        self._program: Program = compile_program(graph, backend.device_of_tensor, backend.placement, self._libraries)
        backend.counters.lowered += len(graph.nodes)
        self._sizes = {device: Memory(size, backend._status) for device, size in self._program.peak.items()}
        self._slots = {t: i for i, t in enumerate(graph.leaves)}
        self._env: list[Native] = [None] * self._program.n_slots  # between runs: the values of inputs and constants
        self._stored = [(i, t) for i, t in enumerate(graph.leaves) if t.op in ("weight", "state")]
        states = [t for _, t in self._stored if t.op == "state"]
        tests = [self._libraries[self._program.devices[state]].is_deleted for state in states]
        self._may_be_lost = [(state, test) for state, test in zip(states, tests) if test is not None]
        self._values: dict[Tensor, Native] = {}
        self._started: list[Native] | None = None  # what the libraries compute now
        self._failure: Exception | None = None  # of a run whose end nobody has waited for
        if backend.params.allocate:
            for device, size in self._program.peak.items():
                with backend.guard(device, "graph", size):
                    backend.require_available(device, size)
            for t in graph.leaves:
                if t.op == "constant":
                    self.write(t, t.attrs["value"])
        self._segments = [self._compiled(segment) for segment in self._program.segments]

    def _compiled(self, segment: Segment) -> Segment:
        """The segment with the function that its library's ``compile_hook`` makes."""
        hook = self._libraries[segment.device].compile_hook
        if hook is None or segment.crosses:
            return segment

        def traced(given: list[Native]) -> list[Native]:
            self._backend.counters.traced += 1
            return segment.run(list(given))

        return segment._replace(run=hook(traced, segment.donated))

    @contextlib.contextmanager
    def _on(self, device: str) -> Iterator[None]:
        """Around all code that touches arrays of a device. Its MemoryError becomes InsufficientMemoryError."""
        with self._backend.guard(device, "graph", self._sizes[device].size), self._libraries[device].scope():
            yield

    def write(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        slot = self._slots.get(tensor)  # None for an input that no output depends on
        if slot is not None:
            device = self._program.devices[tensor]
            with self._on(device):
                self._env[slot] = self._libraries[device].array(array.copy(), tensor.dtype)

    def run(self) -> None:
        with self._backend.lock:
            self._prepare()
            # every backend computes infinities and NaN silently: ignore the user's np.seterr
            with np.errstate(all="ignore"):
                self._finish(self._compute())

    def start(self) -> bool:
        if all(library.begin is None for library in self._libraries.values()):
            return super().start()
        with self._backend.lock, np.errstate(all="ignore"):
            self._prepare()
            results = self._compute()
            self._call_libraries("begin", results)
            self._started, self._backend._running = results, self
            return True

    def _prepare(self) -> None:
        backend = self._backend
        backend._require_open()
        if not backend.params.allocate:
            raise GraphError("the backend is open for a dry run and cannot compute", hint="open it with allocate=True")
        backend._complete()
        self._failure = None  # of a run that nobody has waited for
        self._values.clear()  # frees the results of the previous run for this one

    def wait(self) -> None:
        with self._backend.lock:
            self.complete()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure

    def complete(self) -> None:
        """Wait for the run that ``start`` began, if any. ``wait`` raises its error. The caller holds the lock."""
        if self._started is None:
            return
        results, self._started, self._backend._running = self._started, None, None
        self._failure = BackendError("the run was interrupted")
        try:
            self._finish(results)
            self._failure = None
        except Exception as error:
            self._failure = error

    def _compute(self) -> list[Native]:
        """Run the segments. Returns the values of the outputs, then the new values of the states.

        Raises ClosedError if a weight or state was released, BackendError if a state was lost.
        """
        env = list(self._env)
        for slot, tensor in self._stored:
            if tensor.handle is None:
                raise ClosedError(f"{tensor!r} was released")
            env[slot] = tensor.handle
        for state, is_deleted in self._may_be_lost:
            if is_deleted(state.handle):
                raise BackendError(
                    f"{state!r} was lost: a run that overwrites its memory failed", hint="load the model again"
                )
        for segment in self._segments:
            given = [env[slot] for slot in segment.reads]
            for slot in segment.dead:
                env[slot] = None
            with self._on(segment.device):
                for slot, value in zip(segment.writes, segment.run(given)):
                    env[slot] = value
            value = None  # it would stay in memory while the next segment runs
            for state, slot in segment.overwritten:  # if a later segment fails, rows written before stay written
                state.handle = env[slot]  # only the library may refer to the old value now
        return [env[slot] for slot in self._program.results]

    def _call_libraries(self, name: Literal["begin", "evaluate"], results: list[Native]) -> None:
        """Call this function of each library that has it, with the results on its device."""
        tensors = (*self._program.outputs, *self._program.states)
        for device, library in self._libraries.items():
            function = getattr(library, name)
            if function is not None:
                with self._on(device):
                    function([v for t, v in zip(tensors, results) if self._program.devices[t] == device])

    def _finish(self, results: list[Native]) -> None:
        """Store the new values of outputs and states. A lazy library has not computed them yet."""
        program = self._program
        self._call_libraries("evaluate", results)
        self._values = dict(zip(program.outputs, results))
        for state, new in zip(program.states, results[len(program.outputs) :]):
            state.handle = new

    def read(self, tensor: Tensor, out: np.ndarray[Any, Any]) -> None:
        with self._backend.lock:
            self._backend._require_open()
            if tensor.op == "constant":
                out[...] = tensor.attrs["value"]
                return
            device = self._program.devices[tensor]
            with self._on(device):  # the library may compute the value only now
                out[...] = self._libraries[device].to_numpy(self._values[tensor])

    def memory(self) -> Mapping[str, Memory]:
        return {device: self._asked(device) or planned for device, planned in self._sizes.items()}

    def _asked(self, device: str) -> Memory | None:
        """What the library says about its compiled functions, and the inputs; None if it cannot tell."""
        library = self._libraries[device]
        if library.graph_nbytes is None:
            return None
        sizes = [library.graph_nbytes(s.run) for s in self._segments if s.device == device and not s.crosses]
        sizes += [library.size(t.shape, t.dtype) for t in self._graph.inputs if self._program.devices[t] == device]
        known = [size for size in sizes if size is not None]
        return Memory(sum(known), self._backend._status) if len(known) == len(sizes) else None

    def placements(self) -> Sequence[NodePlacement]:
        backend = self._backend
        intended = node_devices(self._graph, backend.placement, backend.device_of_tensor)
        placements = []
        for n in self._graph.nodes:
            device = self._program.devices[n]
            how = "decomposed" if _is_inside(n.name, self._decomposed) else "native"
            how = how if device == intended[n] else "fallback"
            placements.append(NodePlacement(n.name, n.op, device, how, n.layer))
        return placements

    def close(self) -> None:
        with self._backend.lock:
            self.complete()
            self._backend._graphs.pop(self, None)
            self._values.clear()
            self._env = [None] * len(self._env)
            self._segments = []  # drops the compiled functions, which may keep memory


def _is_inside(name: str, decomposed: set[str]) -> bool:
    """Whether a decomposition made this node: its name is ``<composite's name>.<op>``."""
    return any(name.startswith(d + ".") for d in decomposed)
