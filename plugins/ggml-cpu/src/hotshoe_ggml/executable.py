"""A compiled graph: ggml nodes built once, allocated once, and computed again and again."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe_core.contract.backend import Executable, NodePlacement
from hotshoe_core.contract.memory import AllocationStatus, Memory
from hotshoe_core.errors import ClosedError, GraphError, NativeError
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.graphs.splits import node_devices
from hotshoe_core.tensors.tensor import TABLE, Tensor
from hotshoe_ggml._native import ffi, lib
from hotshoe_ggml.buffers import NativeContext, OutOfMemory, TensorBuffer, room_for
from hotshoe_ggml.cpu.fusion import fuse, operands
from hotshoe_ggml.cpu.packed import PackedWeight, QuantizedWeight, multiplies_stored
from hotshoe_ggml.lowering import LOWERINGS, Builder, lower_fused, node_budget
from hotshoe_ggml.placing import choose_units
from hotshoe_ggml.scheduler import ScheduledGraph, Scheduler
from hotshoe_ggml.unit import Unit, is_view
from hotshoe_ggml.weights import as_read

if TYPE_CHECKING:
    from hotshoe_ggml.backend import GgmlBackend

__all__ = ["GgmlExecutable"]


class GgmlExecutable(Executable):
    """Replaying it is one call into the scheduler; inputs and outputs are copied in and out around it.

    Where there are several units, all executables of the backend share one scheduler and its buffers. One that another
    takes the place of keeps its outputs on the host, and its memory comes back when it runs again.
    """

    def __init__(self, backend: GgmlBackend, graph: Graph) -> None:
        self._backend = backend
        self._graph = graph
        self._dry = not backend.params.allocate
        self._closed = False
        self._released: Tensor | None = None
        self._shares = backend.scheduler is not None
        self._scheduler = backend.scheduler or Scheduler(backend.units)
        self._scheduled: ScheduledGraph | None = None
        self._fed: dict[Tensor, np.ndarray[Any, Any]] = {}
        self._ran = False
        self._kept: dict[Tensor, np.ndarray[Any, Any]] = {}  # outputs, while another has the place
        self._constants: list[TensorBuffer] = []
        self._native: dict[Tensor, Any] = {}  # ggml's tensors, and packed weights, which it keeps alive
        self._keep: list[Any] = []
        self._outputs: dict[Tensor, Any] = {}  # the memory they are read from: for some a copy
        self._sizes: dict[str, Memory] = {}
        self._places: dict[Tensor, str] = {}  # where there are several devices: which each node is meant for
        self._units: list[Unit] = []  # where there are several: of each ggml node, but for the copies at the end
        n_copies = 2 * (len(graph.outputs) + len(graph.updates))
        n_nodes = sum(map(node_budget, graph.nodes)) + len(graph.leaves) + n_copies + 64
        self._context = NativeContext(n_nodes, n_nodes)
        try:
            self._hold_constants()
            self._cgraph = self._build(n_nodes)
            self._allocate()
        except BaseException:
            self.close()
            raise

    def _hold_constants(self) -> None:
        """Each on the device of its layer."""
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
        g, graph, native = lib(), self._graph, self._native
        flash, n_threads = self._backend.params.flash_attention, self._backend.n_threads
        bf16 = self._backend.rounds_to_bf16
        builder = Builder(self._context.pointer, custom=False, flash=flash, n_threads=n_threads, bf16=bf16)
        self._keep = builder.keep
        for leaf in graph.leaves:
            if leaf.op == "input":
                native[leaf] = builder.new(leaf.shape, leaf.dtype)
                g.ggml_set_input(native[leaf])
            elif leaf.op != "constant":
                if leaf.owner is not self._backend:
                    raise GraphError(f"{leaf!r} is held by another backend")
                if leaf.handle is None:
                    raise ClosedError(f"{leaf!r} was released")
                native[leaf] = leaf.handle
        cgraph = g.ggml_new_graph_custom(self._context.pointer, size, False)
        fused, vanished = fuse(graph, self._is_own_product, self._is_gated_pair)
        counters, several = self._backend.counters, len(self._backend.units) > 1
        if several:
            self._places = node_devices(graph, self._backend.placement, self._backend.device_of_tensor)
        for node in graph.nodes:
            counters.lowered += 1
            if node in vanished:
                continue
            builder.custom = self._backend.own_kernels(node)
            if node in fused:
                native[node] = lower_fused(builder, node, fused[node], self._read)
            else:
                sources = [None if s is None else self._read(node.op, s, i) for i, s in enumerate(node.sources)]
                if TABLE[node.op].overwrites and node not in graph.in_place:
                    sources[0] = builder.call("cont", sources[0])
                native[node] = LOWERINGS[node.op](builder, node, *sources)
                g.ggml_set_name(native[node], node.name.encode()[:63])
            g.ggml_build_forward_expand(cgraph, native[node])  # in the order of the graph: see Graph.in_place
            if several:
                n_more = g.ggml_graph_n_nodes(cgraph) - len(self._units)
                self._units += [self._backend.unit(self._places[node])] * n_more
        builder.custom = all(unit.own_kernels for unit in self._backend.units)
        for t in graph.outputs:
            # a leaf's memory may be laid out for the device, a view is not contiguous, a state changes: read a copy
            copied = t.is_leaf or graph.state_behind(t) is not None
            out = builder.call("cont", self._read("read", t)) if copied else builder.cont(native[t])
            self._outputs[t] = out
            while out != ffi.NULL:  # the memory is that of the tensor viewed
                g.ggml_set_output(out)
                out = out.view_src
            g.ggml_build_forward_expand(cgraph, self._outputs[t])
        self._update_states(builder, cgraph)
        self._units = choose_units(cgraph, self._backend.units, self._units)
        return cgraph

    def _is_own_product(self, node: Tensor) -> bool:
        """Whether this ``linear`` or ``linear_experts`` is one of our kernels', not of ggml's."""
        weight = operands(node)[1]
        if isinstance(self._native.get(weight), PackedWeight):
            return True
        if self._backend.params.repack is not True or not self._backend.own_kernels(node):
            return False
        return multiplies_stored(weight, node.size // node.shape[-1], bf16=self._backend.rounds_to_bf16)

    def _is_gated_pair(self, gate: Tensor, up: Tensor) -> bool:
        """Whether ``act(gate) * up`` of these two products of ours is one of our kernels'."""
        (x, a), (y, b) = operands(gate), operands(up)
        of_gate, own = self._native.get(a), self._native.get(b)
        if x is not y or not isinstance(own, QuantizedWeight) or not isinstance(of_gate, QuantizedWeight):
            return False
        choices = gate.sources[2:], up.sources[2:]  # of experts, where they are such
        return own.takes_gate(of_gate) and all(map(operator.is_, *choices))

    def _read(self, op: str, tensor: Tensor, operand: int = 0) -> Any:
        """ggml's tensor, as this operand of ``op`` reads it. Raises UnsupportedOpError."""
        return as_read(tensor, self._native[tensor], op, operand)

    def _update_states(self, builder: Builder, cgraph: Any) -> None:
        """Copies new values into the states that do not have them yet, after everything that reads the old ones."""
        g, graph = lib(), self._graph
        copies = []
        for state, new in graph.updates.items():
            behind = graph.state_behind(new)
            if new is state or (behind is state and new in graph.in_place):
                continue
            value = self._read("read", new)
            if behind in graph.updates:  # states may trade their values
                value = builder.call("cont", value)
                g.ggml_build_forward_expand(cgraph, value)
            copies.append((value, self._native[state]))
        for value, state in copies:
            g.ggml_build_forward_expand(cgraph, builder.call("cpy", value, state))

    def _allocate(self) -> None:
        units = self._backend.units
        graph = ScheduledGraph(self._cgraph, self._context, self._n_native(), self._units, self._displaced)
        self._scheduled = graph
        if self._dry:
            self._sizes = {name: Memory(size) for name, size in self._scheduler.measure(graph).items()}
            return
        sizes: Mapping[str, int] = self._scheduler.measure(graph) if self._shares else {}
        self._scheduler.hold(graph)
        room_for(sum(unit.work_size(self._cgraph) for unit in units))
        sizes = sizes or self._scheduler.sizes()
        self._sizes = {name: Memory(size, AllocationStatus.ALLOCATED) for name, size in sizes.items()}

    def _displaced(self) -> None:
        if self._ran and not self._kept:
            for tensor in self._outputs:
                assert tensor.dtype.numpy is not None
                self._kept[tensor] = np.empty(tensor.shape, tensor.dtype.numpy)
                self._get(tensor, self._kept[tensor])

    def _n_native(self) -> int:
        """No fewer than ggml's nodes and leaves: of each leaf of ours two layouts, and one that a lowering makes."""
        graph = self._graph
        return int(lib().ggml_graph_n_nodes(self._cgraph)) + 2 * len(graph.leaves) + len(graph.nodes) + 16

    def write(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        self._fed[tensor] = array

    def run(self) -> None:
        with self._backend.lock:
            if self._closed:
                raise ClosedError("the graph's memory was freed")
            if self._released is not None:
                raise ClosedError(f"{self._released!r} was released")
            if self._dry:
                raise GraphError("the backend was opened for a dry run and cannot compute", hint="allocate=True")
            self._backend.require_devices()  # back again, it would not have what it had
            self._hold()
            for tensor, array in self._fed.items():
                native = self._native.get(tensor)
                if native is not None and native.buffer != ffi.NULL:  # an unused input has no memory
                    _set(native, array)
            self._fed.clear()
            self._kept.clear()
            self._ran = False
            status = lib().ggml_backend_sched_graph_compute(self._scheduler.native, self._cgraph)
            self._backend.require_devices()
            if status == lib().GGML_STATUS_ALLOC_FAILED:
                raise self._backend.exhausted()
            if status != lib().GGML_STATUS_SUCCESS:
                raise NativeError(f"ggml: {ffi.string(lib().ggml_status_to_string(status)).decode()}")
            self._ran = True

    def _hold(self) -> None:
        """Have the memory of the temporaries."""
        assert self._scheduled is not None
        try:
            self._scheduler.hold(self._scheduled)
        except OutOfMemory:
            raise self._backend.exhausted() from None

    def read(self, tensor: Tensor, out: np.ndarray[Any, Any]) -> None:
        with self._backend.lock:
            if self._closed:
                raise ClosedError("the graph's memory was freed")
            if tensor in self._kept:
                out[...] = self._kept[tensor]
            else:
                self._get(tensor, out)
                self._backend.require_devices()

    def _get(self, tensor: Tensor, out: np.ndarray[Any, Any]) -> None:
        lib().ggml_backend_tensor_get(self._outputs[tensor], ffi.from_buffer(out), 0, out.nbytes)

    def invalidate(self, tensor: Tensor) -> None:
        """A weight or state was released: a graph that uses it must not run again."""
        if tensor in self._native:
            self._released = tensor

    def memory(self) -> Mapping[str, Memory]:
        return dict(self._sizes)

    def placements(self) -> Sequence[NodePlacement]:
        with self._backend.lock:
            if not self._dry and not self._closed:
                self._hold()
            return self._placements()

    def _placements(self) -> Sequence[NodePlacement]:
        g, backends = lib(), [unit.backend for unit in self._backend.units]
        names = {int(ffi.cast("uintptr_t", b)): unit.name for b, unit in zip(backends, self._backend.units)}
        decomposed = tuple(f"{name}." for name, _ in self._graph.decomposed)
        assert self._scheduled is not None
        chosen = {
            int(ffi.cast("uintptr_t", n)): u.backend for n, u in self._scheduled.chosen if not is_view(n)
        }  # what a dry run's scheduler was not told
        placed = []
        for node in self._graph.nodes:
            native = self._native.get(node, ffi.NULL)
            wanted = self._places.get(node) or self._backend.units[0].name
            if native == ffi.NULL or is_view(native):  # fused into the product before it, or nothing is computed
                where = ffi.NULL
            elif self._dry:
                where = chosen.get(int(ffi.cast("uintptr_t", native)), ffi.NULL)
            else:
                where = g.ggml_backend_sched_get_tensor_backend(self._scheduler.native, native)
            device = names.get(int(ffi.cast("uintptr_t", where)), wanted)
            how = "decomposed" if node.name.startswith(decomposed) else "native"
            how = how if device == wanted else "fallback"
            placed.append(NodePlacement(node.name, node.op, device, how, node.layer))
        return placed

    def close(self) -> None:
        with self._backend.lock:
            if self._closed:
                return
            self._closed = True
            if self._scheduled is not None:
                self._scheduler.forget(self._scheduled)
            if not self._shares:
                self._scheduler.free()
            for buffer in self._constants:
                buffer.free()
            self._context.free()
            self._native.clear()
            self._keep.clear()
            self._backend.forget(self)


def _set(tensor: Any, array: np.ndarray[Any, Any]) -> None:
    lib().ggml_backend_tensor_set(tensor, ffi.from_buffer(array), 0, array.nbytes)
