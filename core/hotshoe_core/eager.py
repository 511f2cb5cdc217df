"""A Backend out of a table ``{op: function over native arrays}``.

For libraries that are NumPy-like and eager (NumPy, MLX, JAX): the author gives the functions and three
conversions, and gets weights, states, memory accounting and graph replay. Composites that are not in the
table are decomposed by core. ``compile_hook`` may turn the whole graph into one compiled function
(``mx.compile``, ``jax.jit``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hotshoe_core.backend import Backend, Counters, Executable, Placement, Progress, WeightData, require_sizes
from hotshoe_core.device import BackendParams, Device
from hotshoe_core.dtypes import DType
from hotshoe_core.errors import ClosedError, GraphError, InsufficientMemoryError
from hotshoe_core.graph import Graph
from hotshoe_core.memory import AllocationStatus, BackendMemory, Memory, format_bytes
from hotshoe_core.tensor import Shape, Tensor

__all__ = ["EagerBackend", "EagerLibrary"]

Native = Any
Run = Callable[[list[Native]], list[Native]]


@dataclass(frozen=True)
class EagerLibrary:
    """What an eager array library has to offer.

    functions: by op name; called with the sources (None where absent) and the op's attributes.
    from_numpy: a native array from a NumPy array and the element type it stands for.
    to_numpy: and back. weight: a native array from a weight's bytes. nbytes: what a weight or state takes.
    compile_hook: given a function from a list of arrays to a list of arrays, a faster one.
    """

    functions: Mapping[str, Callable[..., Native]]
    from_numpy: Callable[[np.ndarray[Any, Any], DType], Native]
    to_numpy: Callable[[Native], np.ndarray[Any, Any]]
    weight: Callable[[WeightData], Native]
    nbytes: Callable[[Shape, DType], int]
    compile_hook: Callable[[Run], Run] = lambda run: run


class EagerBackend(Backend):
    """The adapter. One device; calls are serialised by a lock."""

    honours = frozenset({"allocate"})

    def __init__(self, name: str, device: Device, params: BackendParams, library: EagerLibrary) -> None:
        self.name = name
        self.devices = (device,)
        self.params = params
        self.counters = Counters()
        self.library = library
        self.lock = threading.RLock()
        self._held: dict[Tensor, Memory] = {}
        self._graphs: dict[EagerExecutable, Memory] = {}

    @property
    def _status(self) -> AllocationStatus:
        return AllocationStatus.ALLOCATED if self.params.allocate else AllocationStatus.UNALLOCATED

    def load(self, weights: Sequence[WeightData], progress: Progress | None = None) -> dict[str, Tensor]:
        self.require_process()
        with self.lock:
            self._require_open()
            loaded: dict[str, Tensor] = {}
            sizes: dict[Tensor, Memory] = {}
            total, done = sum(w.data.nbytes for w in weights) or 1, 0
            for w in weights:
                tensor = Tensor("weight", (), {}, w.shape, w.dtype, name=w.name, layer=w.layer)
                tensor.owner = self
                size = self.library.nbytes(w.shape, w.dtype)
                if self.params.allocate:
                    with self._guard("weights", size, w.layer):
                        tensor.handle = self.library.weight(w)
                sizes[tensor] = Memory(size, self._status)
                loaded[w.name] = tensor
                done += w.data.nbytes
                if progress is not None:
                    progress(done / total)
            self._held.update(sizes)
            return loaded

    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        self.require_process()
        with self.lock:
            self._require_open()
            require_sizes(f"state {name!r}", shape)
            tensor = Tensor("state", (), {}, tuple(shape), dtype, name=name, layer=layer)
            tensor.owner = self
            size = self.library.nbytes(tensor.shape, dtype)
            if self.params.allocate:
                with self._guard("cache", size, layer):
                    tensor.handle = self.library.from_numpy(np.zeros(shape, dtype.numpy or np.float32), dtype)
            self._held[tensor] = Memory(size, self._status)
            return tensor

    def release(self, tensors: Sequence[Tensor]) -> None:
        with self.lock:
            for t in tensors:
                self._held.pop(t, None)
                t.handle = None

    def supports(self, node: Tensor) -> bool:
        return node.op in self.library.functions

    def compile(self, graph: Graph) -> EagerExecutable:
        self.require_process()
        with self.lock:
            self._require_open()
            for leaf in graph.leaves:
                if leaf.op in ("weight", "state") and leaf.owner is not self:
                    raise GraphError(f"{leaf!r} is held by another backend than {self.name}")
                if leaf.op in ("weight", "state") and leaf not in self._held:
                    raise ClosedError(f"{leaf!r} was released")
            executable = EagerExecutable(self, graph)
            self._graphs[executable] = executable.size
            self.counters.compiled += 1
            return executable

    def memory(self) -> BackendMemory:
        report = BackendMemory()
        device = report.on(self.devices[0].name)
        for tensor, size in self._held.items():
            where = device.weights if tensor.op == "weight" else device.cache
            before = where.get(tensor.layer, Memory())
            where[tensor.layer] = Memory(before.size + size.size, size.status)
        device.graph = Memory(sum(m.size for m in self._graphs.values()), self._status)
        return report

    def close(self) -> None:
        if self.foreign:
            return
        with self.lock:
            self._closed = True
            self.release(list(self._held))
            self._graphs.clear()

    @contextlib.contextmanager
    def _guard(self, what: Literal["weights", "cache", "graph"], size: int, layer: int = -1) -> Iterator[None]:
        """Turns the library's MemoryError into ours, with the breakdown."""
        try:
            yield
        except MemoryError:
            report = self.memory()
            report.fail(self.devices[0].name, what, size, layer)
            raise InsufficientMemoryError(
                f"{self.devices[0].name} has no {format_bytes(size)} for the {what}",
                memory=report,
                hint="use a smaller context or batch, a more quantized file, or another device",
            ) from None

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self.name} backend is closed")


class EagerExecutable(Executable):
    """A flat program: each step calls one function on numbered slots; a slot is dropped after its last use."""

    def __init__(self, backend: EagerBackend, graph: Graph) -> None:
        self._backend = backend
        self._library = backend.library
        slots = {t: i for i, t in enumerate((*graph.leaves, *graph.nodes))}
        self._inputs = {t: slots[t] for t in graph.inputs}
        self._held = [(slots[t], t) for t in graph.leaves if t.op in ("weight", "state")]
        self._constants = [
            (slots[t], self._library.from_numpy(t.attrs["value"], t.dtype))
            for t in graph.leaves
            if t.op == "constant" and backend.params.allocate
        ]
        self._results = list(dict.fromkeys((*graph.outputs, *graph.updates.values())))
        self._updates = dict(graph.updates)
        self._nodes = graph.nodes
        self._decomposed = {name for name, _ in graph.decomposed}
        self._fed: dict[int, Native] = {}
        self._values: dict[Tensor, Native] = {}
        self.size = Memory(sum(4 * t.size for t in graph.nodes), backend._status)

        last_use = {s: i for i, node in enumerate(graph.nodes) for s in node.sources if s is not None}
        keep = {slots[t] for t in self._results}
        program = []
        for i, node in enumerate(graph.nodes):
            sources = tuple(-1 if s is None else slots[s] for s in node.sources)
            dead = tuple({slots[s] for s in node.sources if s is not None and last_use[s] == i} - keep)
            program.append((self._library.functions[node.op], sources, node.attrs, slots[node], dead))
            backend.counters.lowered += 1
        n_slots, outs = len(slots), [slots[t] for t in self._results]
        leaves = range(len(graph.leaves))

        def run(given: list[Native]) -> list[Native]:
            env: list[Native] = [None] * (n_slots + 1)  # the last one stays None: an absent source is slot -1
            for slot, value in zip(leaves, given):
                env[slot] = value
            for function, sources, attrs, slot, dead in program:
                env[slot] = function(*(env[s] for s in sources), **attrs)
                for s in dead:
                    env[s] = None
            return [env[s] for s in outs]

        self._n_leaves = len(graph.leaves)
        self._run = self._library.compile_hook(run)

    def write(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        if tensor in self._inputs:  # an input that no output depends on has no slot
            self._fed[self._inputs[tensor]] = self._library.from_numpy(array.copy(), tensor.dtype)

    def run(self) -> None:
        with self._backend.lock:
            self._backend._require_open()
            if not self._backend.params.allocate:
                raise GraphError("the backend was opened for a dry run and cannot compute", hint="allocate=True")
            given: list[Native] = [None] * self._n_leaves
            for slot, value in self._constants:
                given[slot] = value
            for slot, tensor in self._held:
                if tensor.handle is None:
                    raise ClosedError(f"{tensor!r} was released")
                given[slot] = tensor.handle
            for slot, value in self._fed.items():
                given[slot] = value
            with self._backend._guard("graph", self.size.size):
                self._values = dict(zip(self._results, self._run(given)))
            for state, new in self._updates.items():
                state.handle = self._values[new]

    def read(self, tensor: Tensor, out: np.ndarray[Any, Any]) -> None:
        with self._backend.lock:
            self._backend._require_open()
            value = tensor.attrs["value"] if tensor.op == "constant" else self._values[tensor]
            out[...] = self._library.to_numpy(value)

    def memory(self) -> Mapping[str, Memory]:
        return {self._backend.devices[0].name: self.size}

    def placements(self) -> Sequence[Placement]:
        device = self._backend.devices[0].name
        return [
            Placement(n.name, n.op, device, "decomposed" if _inside(n.name, self._decomposed) else "native")
            for n in self._nodes
        ]

    def close(self) -> None:
        with self._backend.lock:
            self._backend._graphs.pop(self, None)
            self._values.clear()
            self._fed.clear()


def _inside(name: str, decomposed: set[str]) -> bool:
    """Whether a node was made by a decomposition: those are named ``<composite's name>.<op>``."""
    return any(name.startswith(d + ".") for d in decomposed)
