"""GgmlExecutable: a compiled graph. Its ggml nodes are built and allocated once, and computed many times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from hotshoe_core.contract.backend import Counters, Executable, NodePlacement, Placement
from hotshoe_core.contract.device import BackendParams
from hotshoe_core.contract.memory import AllocationStatus, Memory
from hotshoe_core.errors import ClosedError, GraphError, InsufficientMemoryError, NativeError
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.graphs.splits import node_devices
from hotshoe_core.tensors.tensor import TABLE, Tensor
from hotshoe_ggml.lowering import LOWERINGS, Builder, ggml_lacks, node_budget
from hotshoe_ggml.memory.buffers import TensorBuffer
from hotshoe_ggml.memory.host import PinnedPool
from hotshoe_ggml.memory.layouts import PRODUCTS, Layout, PackedLayout
from hotshoe_ggml.native import ffi, ggml_functions, kernels, lib
from hotshoe_ggml.native.context import NativeContext, OutOfMemory, is_view_op, require_memory
from hotshoe_ggml.native.log import follow_level
from hotshoe_ggml.run.assign import assign_units
from hotshoe_ggml.run.scheduler import ScheduledGraph, Scheduler
from hotshoe_ggml.unit import Unit

__all__ = ["GgmlExecutable", "Owner"]


class Owner(Protocol):
    """The parts of the backend that an executable uses."""

    params: BackendParams
    counters: Counters
    units: list[Unit]
    scheduler: Scheduler | None
    """Shared by all executables; None with one unit, where each executable has its own."""

    pinned: PinnedPool | None
    """Memory for outputs that a device writes by itself; None if no device has such memory."""

    running: GgmlExecutable | None
    """The executable that was started and is not complete. It uses the shared buffers."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    @property
    def placement(self) -> Placement: ...
    def unit(self, name: str) -> Unit: ...
    def unit_of(self, layer: int) -> Unit: ...
    def device_of_tensor(self, tensor: Tensor) -> str: ...
    def require_devices(self) -> None: ...
    def exhausted(self) -> InsufficientMemoryError: ...
    def forget(self, executable: GgmlExecutable) -> None: ...


class GgmlExecutable(Executable):
    """A graph on the units of a backend. To run it is to copy its inputs and call the scheduler once.

    With several units, all executables of the backend share one scheduler and its buffers. So each run ends with a copy
    of the outputs on the host.
    """

    def __init__(self, backend: Owner, graph: Graph) -> None:
        self._backend = backend
        self._graph = graph
        self._dry = not backend.params.allocate
        self._closed = False
        self._released: Tensor | None = None
        self._shares = backend.scheduler is not None
        self._scheduler = backend.scheduler or Scheduler(backend.units)
        self._scheduled: ScheduledGraph | None = None
        self._fed: dict[Tensor, np.ndarray[Any, Any]] = {}
        self._saved_outputs: dict[Tensor, np.ndarray[Any, Any]] = {}  # on the host, if the scheduler is shared
        self._constants: list[TensorBuffer] = []
        self._layouts: dict[Tensor, Layout] = {}  # of weights and states; this also keeps them alive
        self._native: dict[Tensor, Any] = {}  # ggml's tensors of all other nodes
        self._keep_alive: list[Any] = []  # parameters of nodes
        self._outputs: dict[Tensor, Any] = {}  # the ggml tensors that they are read from; some are copies
        self._status = 0  # ggml's, of the last run
        self._failure: Exception | None = None  # of a run whose end nobody has waited for
        self._sizes: dict[str, Memory] = {}
        self._devices: dict[Tensor, str] = {}  # wanted for each node, if there are several units
        n_copies = 2 * (len(graph.outputs) + len(graph.updates))
        n_nodes = sum(map(node_budget, graph.nodes)) + len(graph.leaves) + n_copies + 64
        self._context = NativeContext(n_nodes, n_nodes)
        try:
            self._load_constants()
            self._cgraph = self._build(n_nodes)
            self._allocate()
        except BaseException:
            self.close()
            raise

    def _load_constants(self) -> None:
        """Load each constant on the device of its layer."""
        by_unit: dict[Unit, list[Tensor]] = {}
        for t in self._graph.leaves:
            if t.op == "constant":
                by_unit.setdefault(self._backend.unit_of(t.layer), []).append(t)
        for unit, constants in by_unit.items():
            buffer = TensorBuffer(len(constants))
            self._constants.append(buffer)
            for i, t in enumerate(constants):
                self._native[t] = buffer.add(t, f"{t.name}.{i}", t.shape, t.dtype)
            buffer.allocate(unit.buffer_type, dry=self._dry)
            for t in constants if not self._dry else ():
                _set(self._native[t], np.ascontiguousarray(t.attrs["value"]))

    def _build(self, size: int) -> Any:
        g, graph, backend, native = lib(), self._graph, self._backend, self._native
        self._require_usable_leaves()
        if len(backend.units) > 1:
            self._devices = node_devices(graph, backend.placement, backend.device_of_tensor)
        numbers = {unit.name: i for i, unit in enumerate(backend.units)}
        wanted = {node: numbers[self._devices[node]] if self._devices else 0 for node in graph.nodes}
        builders = [unit.builder(self._context.pointer, self._keep_alive) for unit in backend.units]
        self._take_leaves(builders[0])
        made_by = dict(wanted)  # the unit whose builder makes each node: the CPU, which is last, for what ggml lacks
        made_by |= {node: len(builders) - 1 for node in graph.nodes if ggml_lacks(node) or self._reads_packed(node)}
        cgraph = g.ggml_new_graph_custom(self._context.pointer, size, False)
        fused: dict[Tensor, Callable[[], Any]] = {}
        absorbed: set[Tensor] = set()
        for i in set(made_by.values()):
            mine = {node for node, maker in made_by.items() if maker == i}
            nodes, others = builders[i].fuse(graph, mine.__contains__, self._read_operand)
            fused, absorbed = fused | nodes, absorbed | others
        for node in graph.nodes:
            if node not in absorbed:
                native[node] = fused[node]() if node in fused else self._lower(builders[made_by[node]], node)
        backend.counters.lowered += len(graph.nodes)
        units = np.empty(size, np.int8)
        self._add_nodes(cgraph, wanted, units)
        n = g.ggml_graph_n_nodes(cgraph)
        self._build_outputs(builders[-1], cgraph)
        self._update_states(builders[-1], cgraph)
        self._units = assign_units(cgraph, backend.units, units[:n])
        return cgraph

    def _add_nodes(self, cgraph: Any, wanted: Mapping[Tensor, int], units: np.ndarray[Any, Any]) -> None:
        """Add the nodes in the order of the graph: see Graph.in_place. units: gets the unit wanted for each."""
        nodes = [node for node in self._graph.nodes if node in self._native]
        names = "".join([node.name.replace("\0", " ") + "\0" for node in nodes]).encode()
        tensors, numbers = [self._native[node] for node in nodes], [wanted[node] for node in nodes]
        added = ffi.from_buffer("int8_t[]", units)
        kernels().hotshoe_add_nodes(ggml_functions(), cgraph, tensors, len(nodes), names, numbers, added)

    def _require_usable_leaves(self) -> None:
        """Raise GraphError or ClosedError for a weight or state of another backend, or one that was released."""
        for leaf in self._graph.leaves:
            if leaf.op in ("weight", "state"):
                if leaf.owner is not self._backend:
                    raise GraphError(f"{leaf!r} is held by another backend")
                if leaf.handle is None:
                    raise ClosedError(f"{leaf!r} was released")

    def _take_leaves(self, builder: Builder) -> None:
        """Make the inputs, and look up weights and states."""
        for leaf in self._graph.leaves:
            if leaf.op == "input":
                self._native[leaf] = builder.new(leaf.shape, leaf.dtype)
                lib().ggml_set_input(self._native[leaf])
            elif leaf.op != "constant":
                self._layouts[leaf] = leaf.handle

    def _lower(self, builder: Builder, node: Tensor) -> Any:
        native = self._native
        sources = [
            None if s is None else native[s] if s in native else self._read_operand(node.op, s, i)
            for i, s in enumerate(node.sources)
        ]
        if TABLE[node.op].overwrites and node not in self._graph.in_place:
            sources[0] = builder.call("cont", sources[0])
        return LOWERINGS[node.op](builder, node, *sources)

    def _reads_packed(self, node: Tensor) -> bool:
        """Whether a product reads a weight that is packed for the CPU's kernels."""
        if node.op not in PRODUCTS.values():
            return False
        layout = self._layouts.get(node.source(1))
        return layout is not None and isinstance(layout.read_by(node.source(1), node.op, 1), PackedLayout)

    def _read_operand(self, op: str, tensor: Tensor, operand: int = 0) -> Any:
        """What this operand of ``op`` reads: see Layout.read_by. Raises UnsupportedOpError."""
        layout = self._layouts.get(tensor)
        return self._native[tensor] if layout is None else layout.read_by(tensor, op, operand)

    def _build_outputs(self, builder: Builder, cgraph: Any) -> None:
        g = lib()
        for t in self._graph.outputs:
            if t.is_leaf or self._graph.state_behind(t) is not None:
                # a copy: the leaf may be in another layout, and the state may change before the output is read
                out = builder.call("cont", self._read_operand("read", t))
            else:
                out = builder.cont(self._native[t])  # a view may not be contiguous, and would be copied
            self._outputs[t] = out
            while out != ffi.NULL:  # a view has its source's memory
                g.ggml_set_output(out)
                out = out.view_src
            g.ggml_build_forward_expand(cgraph, self._outputs[t])

    def _update_states(self, builder: Builder, cgraph: Any) -> None:
        """Copy new values into states after all nodes that read the old values, except values written in place."""
        g, graph = lib(), self._graph
        copies = []
        for state, new in graph.updates.items():
            behind = graph.state_behind(new)
            if new is state or (behind is state and new in graph.in_place):
                continue
            value = self._read_operand("read", new)
            if behind in graph.updates:  # two states may exchange their values
                value = builder.call("cont", value)
                g.ggml_build_forward_expand(cgraph, value)
            copies.append((value, self._read_operand("read", state)))
        for value, state in copies:
            g.ggml_build_forward_expand(cgraph, builder.call("cpy", value, state))

    def _allocate(self) -> None:
        units = self._backend.units
        inputs = [self._native[leaf] for leaf in self._graph.leaves if leaf.op == "input"]
        several = ffi.NULL if self._units is None else ffi.from_buffer("int8_t[]", self._units)
        graph = ScheduledGraph(self._cgraph, self._n_native(), several, inputs)
        self._scheduler.add(graph)
        self._scheduled = graph
        if self._dry:
            self._sizes = _planned(self._scheduler.measure(graph))
            return
        if self._backend.running is not None and self._scheduler.grows(graph):
            self._complete_other()
        self._scheduler.allocate(graph)
        require_memory(sum(unit.work_size(self._cgraph) for unit in units))
        if not self._shares:
            sizes = self._scheduler.sizes()
            self._sizes = {name: Memory(size, AllocationStatus.ALLOCATED) for name, size in sizes.items()}

    def _n_native(self) -> int:
        """At least the number of ggml's nodes and leaves: each leaf of ours may have two, each lowering one."""
        graph = self._graph
        return int(lib().ggml_graph_n_nodes(self._cgraph)) + 2 * len(graph.leaves) + len(graph.nodes) + 16

    def write(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        if self._backend.running is self:  # only after an interrupt: the end of a run forgets what was fed
            with self._backend.lock:
                self.complete()
        self._fed[tensor] = array

    def run(self) -> None:
        with self._backend.lock:
            self.start()
            self.wait()

    def start(self) -> bool:
        with self._backend.lock:
            if self._closed:
                raise ClosedError("the graph's memory was freed")
            if self._released is not None:
                raise ClosedError(f"{self._released!r} was released")
            if self._dry:
                raise GraphError("the backend was opened for a dry run and cannot compute", hint="allocate=True")
            self._complete_other()
            self._failure = None  # of a run that nobody has waited for
            follow_level()
            self._backend.require_devices()  # a device that was lost and came back has lost its memory
            scheduled = self._acquire()
            for unit in self._backend.units:
                unit.begin_step(self._graph, alone=not self._shares)
            self._saved_outputs = {t: self._on_host(t) for t in self._outputs} if self._shares else {}
            self._backend.running, self._status = self, lib().GGML_STATUS_FAILED
            try:  # all is queued on the devices: the host waits once
                for tensor, array in self._fed.items():
                    native = self._native.get(tensor)
                    if native is not None and native.buffer != ffi.NULL:  # an unused input has no memory
                        self._set(native, array)
                self._status = self._scheduler.compute(scheduled)
                if self._saved_outputs and self._status == lib().GGML_STATUS_SUCCESS:
                    self._queue_outputs(later=False)
            except BaseException:
                self.complete()
                self._failure = None
                raise
            if not self._shares:
                self.wait()
            return self._shares

    def wait(self) -> None:
        with self._backend.lock:
            self.complete()
            failure, self._failure = self._failure, None
            if failure is not None:
                self._saved_outputs.clear()
                raise failure

    def complete(self) -> None:
        """Wait for the run that ``start`` began, if any. ``wait`` raises its error. The caller holds the lock."""
        if self._backend.running is not self:
            return
        self._failure = NativeError("the run was interrupted")
        try:
            self._scheduler.synchronize()  # until here the devices read and write the arrays
            if self._saved_outputs and self._status == lib().GGML_STATUS_SUCCESS:
                self._queue_outputs(later=True)
        finally:
            self._backend.running = None
            self._fed.clear()
            for unit in self._backend.units:
                unit.end_step()
        try:
            self._backend.require_devices()
            if self._status == lib().GGML_STATUS_ALLOC_FAILED:
                raise self._backend.exhausted()
            if self._status != lib().GGML_STATUS_SUCCESS:
                raise NativeError(f"ggml: {ffi.string(lib().ggml_status_to_string(self._status)).decode()}")
            self._failure = None
        except Exception as error:
            self._failure = error

    def _complete_other(self) -> None:
        """Wait for the executable that uses the shared buffers, if there is one."""
        if self._backend.running is not None:
            self._backend.running.complete()

    def _queue_outputs(self, *, later: bool) -> None:
        """Copy outputs to the host: those that a device copies when it has computed, or later, all others at once."""
        for tensor, out in self._saved_outputs.items():
            unit = self._unit_of_output(self._outputs[tensor])
            if later == (unit is None or not unit.copies_later):
                self._get(unit, self._outputs[tensor], out)

    def _on_host(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """A new array for an output: pinned if possible."""
        dtype, pool = np.dtype(tensor.dtype.numpy), self._backend.pinned
        array = None if pool is None else pool.array(tensor.shape, dtype)
        return np.empty(tensor.shape, dtype) if array is None else array

    def _set(self, native: Any, array: np.ndarray[Any, Any]) -> None:
        """Copy an input to where it is read. A device may do it later, in the order of what is queued on it."""
        unit = self._unit_with(native)
        if unit is None:
            _set(native, array)
        else:
            data = ffi.from_buffer(array)
            lib().ggml_backend_tensor_set_async(unit.ggml_backend, native, data, 0, array.nbytes)

    def _unit_of_output(self, native: Any) -> Unit | None:
        """The unit that computes an output; None for a view of a constant, a weight, or an input of several units."""
        return self._unit_with(_without_views(native))

    @staticmethod
    def _get(unit: Unit | None, native: Any, out: np.ndarray[Any, Any]) -> None:
        """Copy an output into ``out``. A device may do it later. What no device computed is copied at once."""
        if unit is None:
            _get(native, out)
        else:
            lib().ggml_backend_tensor_get_async(unit.ggml_backend, native, ffi.from_buffer(out), 0, out.nbytes)

    def _unit_with(self, native: Any) -> Unit | None:
        """The unit that computes a node, or the only one that reads an input."""
        number = -1 if self._scheduled is None else self._scheduled.unit(native)
        return None if number < 0 else self._backend.units[number]

    def _acquire(self) -> ScheduledGraph:
        """Get the memory of the temporaries. Raises InsufficientMemoryError."""
        assert self._scheduled is not None
        try:
            self._scheduler.allocate(self._scheduled)
        except OutOfMemory:
            raise self._backend.exhausted() from None
        return self._scheduled

    def read(self, tensor: Tensor, out: np.ndarray[Any, Any]) -> None:
        with self._backend.lock:
            if self._closed:
                raise ClosedError("the graph's memory was freed")
            if tensor in self._saved_outputs:
                out[...] = self._saved_outputs[tensor]
            else:
                _get(self._outputs[tensor], out)
                self._backend.require_devices()

    def give(self, tensor: Tensor) -> np.ndarray[Any, Any] | None:
        with self._backend.lock:
            return self._saved_outputs.pop(tensor, None)

    def invalidate(self, tensor: Tensor) -> None:
        """Refuse to run again if the graph uses this weight or state, which was released."""
        if tensor in self._layouts:
            self._released = tensor

    def memory(self) -> Mapping[str, Memory]:
        with self._backend.lock:
            if not self._sizes and self._scheduled is not None and not self._closed:  # what it would need by itself
                self.complete()  # measuring takes its memory
                try:
                    self._sizes = _planned(self._scheduler.measure(self._scheduled))
                except OutOfMemory:
                    raise self._backend.exhausted() from None
            return dict(self._sizes)

    def placements(self) -> Sequence[NodePlacement]:
        decomposed = tuple(f"{name}." for name, _ in self._graph.decomposed)
        placements = []
        with self._backend.lock:
            for node in self._graph.nodes:
                native = self._native.get(node, ffi.NULL)
                wanted = self._devices.get(node) or self._backend.units[0].name
                unit = None
                if native != ffi.NULL:  # not fused into another product
                    memory = _without_views(native)
                    sources = (self._native.get(s, ffi.NULL) for s in node.sources if s is not None)
                    if all(memory != _without_views(s) for s in sources):  # not a view of a source
                        unit = self._unit_with(memory)
                device = wanted if unit is None else unit.name
                how = "decomposed" if node.name.startswith(decomposed) else "native"
                how = how if device == wanted else "fallback"
                placements.append(NodePlacement(node.name, node.op, device, how, node.layer))
        return placements

    def close(self) -> None:
        with self._backend.lock:
            if self._closed:
                return
            self.complete()
            self._closed = True
            if self._scheduled is not None:
                self._scheduler.forget(self._scheduled)
                self._scheduled = None
            for buffer in self._constants:
                buffer.free()
            self._saved_outputs.clear()
            self._context.free()
            self._native.clear()
            self._layouts.clear()
            self._keep_alive.clear()
            self._backend.forget(self)


def _without_views(native: Any) -> Any:
    """The node whose memory a node is a view of, or itself."""
    while native != ffi.NULL and is_view_op(native):
        native = native.view_src
    return native


def _planned(sizes: Mapping[str, int]) -> dict[str, Memory]:
    return {name: Memory(size) for name, size in sizes.items()}


def _set(tensor: Any, array: np.ndarray[Any, Any]) -> None:
    lib().ggml_backend_tensor_set(tensor, ffi.from_buffer(array), 0, array.nbytes)


def _get(tensor: Any, out: np.ndarray[Any, Any]) -> None:
    lib().ggml_backend_tensor_get(tensor, ffi.from_buffer(out), 0, out.nbytes)
