"""A Backend out of a table ``{op: function over native arrays}``.

For libraries that are NumPy-like and eager (NumPy, PyTorch, MLX, JAX): the author gives the functions and three
conversions, and gets weights, states, placement over several devices, memory accounting and graph replay. Composites
that are not in the table are decomposed by core. ``compile_hook`` may turn the whole graph into one compiled function
(``mx.compile``, ``jax.jit``).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from hotshoe_core.eager.program import Program, compile_program
from hotshoe_core.errors import BackendError, ClosedError, GraphError, InsufficientMemoryError
from hotshoe_core.errors.text import format_bytes
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.graphs.splits import node_places
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.leaf_checks import require_leaf
from hotshoe_core.tensors.quants import dequantize, round_to
from hotshoe_core.tensors.tensor import TABLE, Shape, Tensor

__all__ = ["EagerBackend", "EagerLibrary"]

Native = Any
Run = Callable[[list[Native]], list[Native]]


@dataclass(frozen=True)
class EagerLibrary:
    """What an eager array library has to offer on one device. The first three are all that it must.

    functions: by op name; called with the sources (None where absent) and the op's attributes. What is arithmetic gets
    its floats in F32 if there is ``f32``; indices that a graph computes are brought into their range first, by the
    function ``clamp``; and no integer is divided by 0 or -1.
    from_numpy: a native array from a NumPy array and the element type it stands for, which is one of ``dtypes``. The
    array is contiguous, and nobody else's: it may be kept and written to. to_numpy: and back; of a type that NumPy has
    not, as float32.
    f32: a float array as F32. Without it functions get floats as they are held, and see to that themselves.
    dtypes: the element types that arrays have here, F32 among them. Others (blocks of quantized values, and BF16 where
    it is not among them) are held as F32, with the values that the type stores.
    round_to: the values of an F32 array as such a type stores them. Without it they go through NumPy.
    in_place: by op name (``set_rows``, ``set_slice``), for libraries whose arrays can be written to: writes into its
    first source and returns that. It is used where nobody reads the old value any more, so that a token does not copy
    a cache; elsewhere on a copy, if the op is not among the functions. Needs ``copy``, a native array of its own with
    the same value.
    weight: what stands for a weight; without it an array, of blocks in F32. weight_nbytes: what that takes, where it is
    not ``nbytes``. nbytes: what an array takes; without it what its type does. zeros: a state's first value.
    receive: a native array here from one of another device of the backend; without it the value goes through NumPy.
    compile_hook: given a function from a list of arrays to a list of arrays, a faster one. The list it is called with
    is its own: what it takes out of that, nobody else holds.
    evaluate: for lazy libraries: computes these arrays, and returns when their values are there. States that a graph
    writes rows into are held by nobody but the new ones by then, so that a library may reuse their memory.
    scope: entered around everything that touches arrays, for a library that wants a stream or a device set in each
    thread, or whose errors are to be translated: MemoryError becomes InsufficientMemoryError.
    available: how many bytes can still be had. What takes more is refused before the library sees it, for those whose
    allocation kills the process. Without it the library's MemoryError says so.
    checks_indices: the functions raise for an index out of range; none is brought into range for them.
    accepts: by op name, which nodes the function takes; all, where nothing is said. Others are decomposed.
    closed: called when the backend is closed, to give back what the library keeps for later.
    cache_config: what a key/value cache should be like. Its length is rounded up to ``padding``, and another length is
    another graph, to be traced and compiled anew.
    honours: the fields of BackendParams that these functions take notice of.
    """

    functions: Mapping[str, Callable[..., Native]]
    from_numpy: Callable[[np.ndarray[Any, Any], DType], Native]
    to_numpy: Callable[[Native], np.ndarray[Any, Any]]
    f32: Callable[[Native], Native] | None = None
    dtypes: frozenset[DType] = frozenset(d for d in DType if d.numpy is not None)
    round_to: Callable[[Native, DType], Native] | None = None
    in_place: Mapping[str, Callable[..., Native]] = field(default_factory=dict)
    copy: Callable[[Native], Native] | None = None
    weight: Callable[[WeightData], Native] | None = None
    weight_nbytes: Callable[[WeightData], int] | None = None
    nbytes: Callable[[Shape, DType], int] | None = None
    zeros: Callable[[Shape, DType], Native] | None = None
    receive: Callable[[Native], Native] | None = None
    compile_hook: Callable[[Run], Run] | None = None
    evaluate: Callable[[list[Native]], None] | None = None
    scope: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    available: Callable[[], int] | None = None
    checks_indices: bool = False
    accepts: Mapping[str, Callable[[Tensor], bool]] = field(default_factory=dict)
    closed: Callable[[], None] = lambda: None
    cache_config: CacheConfig = field(default_factory=lambda: CacheConfig(padding=64))
    honours: frozenset[str] = frozenset()

    def has(self, node: Tensor) -> bool:
        """Whether there is a function for this node."""
        if node.op not in self.functions and node.op not in self.in_place:
            return False
        accepts = self.accepts.get(node.op)
        return accepts is None or accepts(node)

    def function(self, op: str) -> Callable[..., Native]:
        """The function of an op, which leaves its sources as they are."""
        if op in self.functions:
            return self.functions[op]
        write, copy = self.in_place[op], self.copy
        assert copy is not None  # EagerBackend has looked
        return lambda x, *sources, **attrs: write(copy(x), *sources, **attrs)

    def held(self, dtype: DType) -> DType:
        """The type of the arrays that stand for an element type."""
        return dtype if dtype in self.dtypes else DType.F32

    def array(self, array: np.ndarray[Any, Any], dtype: DType) -> Native:
        """A native array from one that the caller gives away."""
        held = self.held(dtype)
        return self.from_numpy(np.require(array, held.numpy or np.float32, ("C", "W", "O")), held)

    def rounded(self, x: Native, *, dtype: DType) -> Native:
        """The values of an array as a type stores them that arrays have not here."""
        if self.round_to is not None:
            return self.round_to(x, dtype)
        return self.array(round_to(self.to_numpy(x).astype(np.float32), dtype), dtype)

    def zeroed(self, shape: Shape, dtype: DType) -> Native:
        """A state's first value."""
        if self.zeros is not None:
            return self.zeros(shape, dtype)
        return self.array(np.zeros(shape, dtype.numpy or np.float32), dtype)

    def load(self, w: WeightData) -> Native:
        """What stands for a weight."""
        if self.weight is not None:
            return self.weight(w)
        return self.array(dequantize(w.data, w.dtype, w.shape), w.dtype)

    def size(self, shape: Shape, dtype: DType) -> int:
        """Bytes that an array takes."""
        return self.held(dtype).nbytes(shape) if self.nbytes is None else self.nbytes(shape, dtype)

    def weight_size(self, w: WeightData) -> int:
        """Bytes that a weight takes."""
        return self.size(w.shape, w.dtype) if self.weight_nbytes is None else self.weight_nbytes(w)


class EagerBackend(Backend):
    """The adapter. Calls are serialised by a lock.

    devices: one, or several with a library for each. Raises BackendError where their numbers differ. traced: how often
    a compile hook has called the program of a graph; a graph that is run again must not add to it.
    """

    def __init__(
        self,
        name: str,
        devices: Device | Sequence[Device],
        params: BackendParams,
        libraries: EagerLibrary | Sequence[EagerLibrary],
    ) -> None:
        self.name = name
        self.devices = (devices,) if isinstance(devices, Device) else tuple(devices)
        self.params = params
        self.counters = Counters()
        self.traced = 0
        self.lock = threading.RLock()
        chosen = (libraries,) if isinstance(libraries, EagerLibrary) else tuple(libraries)
        if not self.devices or len(chosen) != len(self.devices):
            raise BackendError(
                f"{name}: got {len(self.devices)} device(s) and libraries for {len(chosen)}; expected one for each",
                hint="name one device" if len(self.devices) > 1 else None,
            )
        for library in chosen:
            if library.in_place and library.copy is None:
                raise BackendError(f"{name}: a library with in_place functions needs copy, too")
        self._libraries = chosen
        self.honours = frozenset({"allocate"}).union(*(library.honours for library in chosen))
        self._held: dict[Tensor, tuple[str, Memory]] = {}
        self._graphs: dict[EagerExecutable, Mapping[str, Memory]] = {}

    @property
    def _status(self) -> AllocationStatus:
        return AllocationStatus.ALLOCATED if self.params.allocate else AllocationStatus.UNALLOCATED

    @property
    def libraries(self) -> Mapping[str, EagerLibrary]:
        """The library of each device, by the device's name."""
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
        device = self.placement.of_weight(w.layer, w.uses)
        library = self.libraries[device]
        return self._hold(tensor, device, library.weight_size(w), lambda: library.load(w))

    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        self.require_process()
        with self.lock:
            self._require_open()
            require_leaf("state", name, shape, dtype, layer)
            tensor = Tensor("state", (), {}, tuple(shape), dtype, name=name, layer=layer)
            device = self.placement.of_state(layer)
            library = self.libraries[device]
            size = library.size(tensor.shape, dtype)
            return self._hold(tensor, device, size, lambda: library.zeroed(tensor.shape, dtype))

    def _hold(self, tensor: Tensor, device: str, size: int, make: Callable[[], Native]) -> Tensor:
        what: Literal["weights", "cache"] = "weights" if tensor.op == "weight" else "cache"
        tensor.owner = self
        if self.params.allocate:
            with self.guard(device, what, size, tensor.layer):
                self.require_available(device, size)
                with self.libraries[device].scope():
                    tensor.handle = make()
        self._held[tensor] = device, Memory(size, self._status)
        return tensor

    def home(self, tensor: Tensor) -> str:
        """The device that holds a weight or state."""
        return self._held[tensor][0]

    def release(self, tensors: Sequence[Tensor]) -> None:
        with self.lock:
            for t in tensors:
                self._held.pop(t, None)
                t.handle = None

    def supports(self, node: Tensor) -> bool:
        if self.library_of(node.layer).has(node):
            return True
        return not TABLE[node.op].composite and any(each.has(node) for each in self.libraries.values())

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
            self._graphs[executable] = executable.memory()
            self.counters.compiled += 1
            return executable

    def memory(self) -> BackendMemory:
        with self.lock:
            report = BackendMemory()
            for device in self.devices:
                report.on(device.name)
            for tensor, (name, size) in self._held.items():
                entry = report.on(name)
                where = entry.weights if tensor.op == "weight" else entry.cache
                where[tensor.layer] = Memory(where.get(tensor.layer, Memory()).size + size.size, size.status)
                in_file = tensor.dtype.nbytes(tensor.shape)
                if tensor.op == "weight" and size.size > in_file:
                    before, here = entry.larger.get(tensor.dtype.name, (0, 0))
                    entry.larger[tensor.dtype.name] = before + in_file, here + size.size
            for entry in report.devices:
                size_of_graphs = sum(m[entry.device].size for m in self._graphs.values() if entry.device in m)
                entry.graph = Memory(size_of_graphs, self._status)
            return report

    def cache_config(self) -> CacheConfig:
        """The coarsest padding of the devices, and the mask type of the first."""
        configs = [library.cache_config for library in self.libraries.values()]
        return CacheConfig(max(c.padding for c in configs), configs[0].mask_dtype)

    def close(self) -> None:
        if self.foreign:
            return
        with self.lock:
            if self._closed:
                return
            self._closed = True
            self.release(list(self._held))
            for executable in list(self._graphs):
                executable.close()
            for library in self._libraries:
                library.closed()

    def require_available(self, device: str, size: int) -> None:
        """Raises MemoryError for what the device's library says it has no room for."""
        available = self.libraries[device].available
        if available is not None and size > available():
            raise MemoryError

    @contextlib.contextmanager
    def guard(
        self, device: str, what: Literal["weights", "cache", "graph"], size: int, layer: int = -1
    ) -> Iterator[None]:
        """Turns the library's MemoryError into ours, with the breakdown."""
        try:
            yield
        except InsufficientMemoryError:
            raise
        except MemoryError:
            report = self.memory()
            report.fail(device, what, size, layer)
            raise InsufficientMemoryError(
                f"{device} has no {format_bytes(size)} for the {what}",
                memory=report,
                hint="use a smaller context or batch, a more quantized file, or another device",
            ) from None

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self.name} backend is closed")


class EagerExecutable(Executable):
    """A graph as a flat program of library calls; see Program."""

    def __init__(self, backend: EagerBackend, graph: Graph) -> None:
        self._backend = backend
        self._graph = graph
        self._decomposed = {name for name, _ in graph.decomposed}
        self._program: Program = compile_program(graph, backend.home, backend.placement, backend.libraries)
        backend.counters.lowered += len(graph.nodes)
        self._sizes = {device: Memory(size, backend._status) for device, size in self._program.peak.items()}
        self._slots = {t: i for i, t in enumerate(graph.leaves)}
        self._given: list[Native] = [None] * len(graph.leaves)
        self._held = [t for t in graph.leaves if t.op in ("weight", "state")]
        self._values: dict[Tensor, Native] = {}
        self._evaluates = [library for library in backend.libraries.values() if library.evaluate is not None]
        if backend.params.allocate:
            for device, size in self._program.peak.items():
                with backend.guard(device, "graph", size):
                    backend.require_available(device, size)
            for t in graph.leaves:
                if t.op == "constant":
                    self._given[self._slots[t]] = self._from_numpy(t, t.attrs["value"].copy())
        self._run = self._program.run
        if len(backend.libraries) == 1:  # what crosses devices cannot be one compiled function of one library
            (library,) = backend.libraries.values()
            if library.compile_hook is not None:
                self._run = library.compile_hook(self._traced)

    def _traced(self, given: list[Native]) -> list[Native]:
        """The program for the compile hook, which calls it as often as it traces."""
        self._backend.traced += 1
        return self._program.run(given)

    def _library(self, tensor: Tensor) -> EagerLibrary:
        return self._backend.libraries[self._program.devices[tensor]]

    def _from_numpy(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> Native:
        library = self._library(tensor)
        with library.scope():
            return library.array(array, tensor.dtype)

    def write(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        slot = self._slots.get(tensor)  # an input that no output depends on has none
        if slot is not None:
            self._given[slot] = self._from_numpy(tensor, array.copy())

    def run(self) -> None:
        backend = self._backend
        with backend.lock:
            backend._require_open()
            if not backend.params.allocate:
                raise GraphError("the backend was opened for a dry run and cannot compute", hint="allocate=True")
            given = list(self._given)
            for tensor in self._held:
                if tensor.handle is None:
                    raise ClosedError(f"{tensor!r} was released")
                given[self._slots[tensor]] = tensor.handle
            self._values.clear()  # of the step before: its memory is free for this one
            first = backend.devices[0].name
            # what is 0, infinite or no number is so for every backend, whatever the user's np.seterr makes of it
            guarded = backend.guard(first, "graph", self._sizes[first].size)
            with guarded, self._program.scope(), np.errstate(all="ignore"):
                results = self._run(given)
                self._finish(given, results)

    def _finish(self, given: list[Native], results: list[Native]) -> None:
        """Outputs and states take their values. A lazy library has computed none of them yet."""
        n_outputs = len(self._program.outputs)
        outputs, updated = results[:n_outputs], results[n_outputs:]
        if self._evaluates:
            lasting = dict(zip(self._program.states, updated))
            for state in self._program.overwritten:  # rows written before an error stay, as in any cache
                state.handle = lasting[state]
            given.clear()  # the old values: nobody but the library holds them now
            self._evaluate(results)
        self._values = dict(zip(self._program.outputs, outputs))
        for state, new in zip(self._program.states, updated):
            state.handle = new

    def _evaluate(self, results: list[Native]) -> None:
        tensors = (*self._program.outputs, *self._program.states)
        for library in self._evaluates:
            assert library.evaluate is not None
            library.evaluate([value for t, value in zip(tensors, results) if self._library(t) is library])

    def read(self, tensor: Tensor, out: np.ndarray[Any, Any]) -> None:
        with self._backend.lock:
            self._backend._require_open()
            if tensor.op == "constant":
                out[...] = tensor.attrs["value"]
                return
            library = self._library(tensor)
            with library.scope():
                out[...] = library.to_numpy(self._values[tensor])

    def memory(self) -> Mapping[str, Memory]:
        return dict(self._sizes)

    def placements(self) -> Sequence[NodePlacement]:
        meant = node_places(self._graph, self._backend.placement, self._backend.home)
        placed = []
        for n in self._graph.nodes:
            device = self._program.devices[n]
            how = "decomposed" if _inside(n.name, self._decomposed) else "native"
            placed.append(NodePlacement(n.name, n.op, device, how if device == meant[n] else "fallback", n.layer))
        return placed

    def close(self) -> None:
        with self._backend.lock:
            self._backend._graphs.pop(self, None)
            self._values.clear()
            self._given = [None] * len(self._given)
            self._run = self._program.run  # not the compiled one, which may hold memory


def _inside(name: str, decomposed: set[str]) -> bool:
    """Whether a node was made by a decomposition: those are named ``<composite's name>.<op>``."""
    return any(name.startswith(d + ".") for d in decomposed)
