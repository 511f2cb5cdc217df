"""GgmlBackend: implements core's Backend with ggml's devices."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hotshoe_core.contract.backend import Backend, CacheConfig, Counters, Placement, Progress, WeightData
from hotshoe_core.contract.device import BackendParams, Device
from hotshoe_core.contract.memory import AllocationStatus, BackendMemory, Memory
from hotshoe_core.errors import ClosedError, DeviceLostError, InsufficientMemoryError
from hotshoe_core.errors.text import format_bytes
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.leaf_checks import require_leaf
from hotshoe_core.tensors.tensor import TABLE, Shape, Tensor
from hotshoe_ggml.lowering import can_lower, ggml_lacks
from hotshoe_ggml.memory.host import PinnedPool
from hotshoe_ggml.memory.transfer import Meter
from hotshoe_ggml.native import blocks, ffi
from hotshoe_ggml.native.context import OutOfMemory
from hotshoe_ggml.native.log import raise_pending
from hotshoe_ggml.open_units import open_units
from hotshoe_ggml.precision import warn_of_precision
from hotshoe_ggml.run.executable import GgmlExecutable
from hotshoe_ggml.run.scheduler import Scheduler
from hotshoe_ggml.unit import Unit
from hotshoe_ggml.weights import Stored, load_weights, make_state

__all__ = ["GgmlBackend"]

Array = np.ndarray[Any, Any]

_SMALLER = "use a smaller context or batch, a more quantized file, or another device"


class GgmlBackend(Backend):
    """The backend for the chosen devices of ggml, the preferred one first."""

    honours = frozenset({"n_threads", "mmap", "repack", "flash_attention", "allocate"})

    def __init__(self, devices: Sequence[Device], params: BackendParams) -> None:
        self.name = "ggml"
        self.devices = tuple(devices)
        self.params = params
        self.counters = Counters()
        self.lock = threading.RLock()
        self.units = open_units(devices, params)
        if params.matmul_precision == "f32" or any(unit.may_round_to_bf16 for unit in self.units):
            self.honours = self.honours | {"matmul_precision"}
        self.fast_math = any(unit.fast_math for unit in self.units)
        self.batch_invariant = self.params.repack is True and len(self.units) == 1 and self.units[0].reads_lists
        self._may_be_lost = [unit for unit in self.units if unit.can_be_lost]
        self._stored: dict[Tensor, tuple[str, Stored]] = {}  # device and memory
        self._executables: set[GgmlExecutable] = set()
        self.running: GgmlExecutable | None = None
        # Several units share one scheduler. With only a CPU, each graph has its own and keeps its addresses. That is
        # cheap, because Linux provides pages only when they are written.
        self.scheduler = Scheduler(self.units) if len(self.units) > 1 else None
        types = [unit.host_buffer_type for unit in self.units if unit.host_buffer_type != ffi.NULL]
        self.pinned = PinnedPool(types[0]) if types else None  # for outputs

    def load(
        self, weights: Sequence[WeightData], placement: Placement | None = None, progress: Progress | None = None
    ) -> dict[str, Tensor]:
        self.require_process()
        with self.lock:
            self._require_open()
            placement = self.require_placement(placement)
            meter = Meter(sum(w.data.nbytes for w in weights), progress)
            stored: dict[str, Stored] = {}
            try:
                for unit in self.units:
                    chosen = [w for w in weights if placement.device_of_weight(w.layer, w.uses) == unit.name]
                    stored |= load_weights(
                        unit, chosen, mmap=self.params.mmap, repack=self.params.repack,
                        dry=not self.params.allocate, meter=meter,
                    )  # fmt: skip
                meter.finish()
                raise_pending()
                if "matmul_precision" in self.honours:
                    placed = [(self.unit(placement.device_of_weight(w.layer, w.uses)), w) for w in weights]
                    warn_of_precision(placed, self.params)
            except BaseException as e:
                for buffer in (buffer for weight in stored.values() for buffer in weight.buffers):
                    buffer.free()
                if isinstance(e, OutOfMemory):
                    raise self._insufficient(e.device or unit.name, "weights", e.size, e.layer) from None
                raise
            self._placement = placement
            self.batch_invariant = self.batch_invariant and all(map(self.units[0].is_batch_invariant, weights))
            loaded = {}
            for w in weights:
                tensor = Tensor("weight", (), {}, w.shape, w.dtype, name=w.name, layer=w.layer)
                loaded[w.key] = self._register(tensor, placement.device_of_weight(w.layer, w.uses), stored[w.key])
            return loaded

    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        self.require_process()
        with self.lock:
            self._require_open()
            require_leaf("state", name, shape, dtype, layer)
            unit = self.unit(self.placement.device_of_state(layer))
            try:
                stored = make_state(unit, shape, dtype, name, dry=not self.params.allocate)
            except OutOfMemory as e:
                raise self._insufficient(unit.name, "cache", e.size, layer) from None
            tensor = Tensor("state", (), {}, tuple(shape), dtype, name=name, layer=layer)
            return self._register(tensor, unit.name, stored)

    def _register(self, tensor: Tensor, device: str, stored: Stored) -> Tensor:
        tensor.owner, tensor.handle = self, stored.layout
        self._stored[tensor] = (device, stored)
        return tensor

    def device_of_tensor(self, tensor: Tensor) -> str:
        return self._stored[tensor][0]

    def release(self, tensors: Sequence[Tensor]) -> None:
        if self.is_forked_copy:
            return  # the threads that this would stop do not exist in a forked process
        with self.lock:
            if self.running is not None:
                self.running.complete()
            for t in tensors:
                if t in self._stored:
                    for executable in self._executables:
                        executable.invalidate(t)
                    for buffer in self._stored.pop(t)[1].buffers:
                        buffer.release_one()
                    t.handle = None

    def unit_of(self, layer: int) -> Unit:
        """The unit that computes a layer, according to the placement."""
        if len(self.units) == 1:  # called for every node of a graph
            return self.units[0]
        return self.unit(self.placement.device(layer))

    def unit(self, name: str) -> Unit:
        """The unit of the device with this name."""
        return next(unit for unit in self.units if unit.name == name)

    def require_devices(self) -> None:
        """Raise DeviceLostError if one of the devices was lost; first a KeyboardInterrupt that came meanwhile.

        Raises InsufficientMemoryError if a copy to or from a device had no memory.
        """
        raise_pending()
        for unit in self._may_be_lost:
            try:
                unit.require_alive()
            except OutOfMemory:
                raise self.exhausted() from None
            except DeviceLostError as error:
                if self.on_lost is not None:
                    self.on_lost(unit.name, error.message)
                raise

    def supports(self, node: Tensor) -> bool:
        # The CPU computes a primitive that ggml lacks for every unit. A composite is decomposed for other units.
        made = not ggml_lacks(node) or not TABLE[node.op].composite or self.unit_of(node.layer).runs_custom_kernels
        return made and can_lower(node)

    def compile(self, graph: Graph) -> GgmlExecutable:
        self.require_process()
        with self.lock:
            self._require_open()
            try:
                executable = GgmlExecutable(self, graph)
            except OutOfMemory as e:
                raise self._insufficient(e.device or self.units[0].name, "graph", e.size, -1) from None
            self._executables.add(executable)
            self.counters.compiled += 1
            return executable

    def forget(self, executable: GgmlExecutable) -> None:
        self._executables.discard(executable)

    def memory(self) -> BackendMemory:
        self.require_process()
        with self.lock:
            status = AllocationStatus.ALLOCATED if self.params.allocate else AllocationStatus.UNALLOCATED
            report = BackendMemory.of(self.devices)
            for unit in self.units:  # also the CPU that was not chosen
                report.on(unit.name)
            for tensor, (name, stored) in self._stored.items():
                device = report.on(name)
                amounts = device.weights if tensor.op == "weight" else device.cache
                amounts[tensor.layer] = Memory(amounts.get(tensor.layer, Memory()).size + stored.nbytes, status)
            shared = self.scheduler.sizes() if self.scheduler is not None and self.params.allocate else None
            for device in report.devices:
                if shared is not None:
                    size = shared.get(device.device, 0)
                else:
                    sizes = [e.memory().get(device.device, Memory()).size for e in self._executables]
                    size = sum(sizes) if self.scheduler is None else max(sizes, default=0)
                device.graph = Memory(size, status)
            return report

    def memory_free(self) -> dict[str, int]:
        """Free bytes of the chosen devices, as their drivers report now. A probe's number may be older."""
        self.require_process()
        with self.lock:
            self._require_open()
            chosen = {d.name for d in self.devices}
            return {u.name: u.memory_free() for u in self.units if u.name in chosen}

    def tuning(self) -> dict[str, str]:
        return {f"{unit.name}: {subject}": found for unit in self.units for subject, found in unit.tuning().items()}

    def cache_config(self) -> CacheConfig:
        # ggml's flash attention reads multiples of 256 cells, and an F16 mask. A GPU computes several tokens while the
        # host builds a graph, and hardly notices a few more cells: it gets fewer lengths. Its libraries write rotated
        # keys into the cache in one kernel, if the indices are I64.
        if len(self.units) == 1:
            return CacheConfig(256, DType.F16, reads_lists=self.units[0].reads_lists)
        n_rows = CacheConfig.rows_for(self.units[0].device)
        return CacheConfig(512, DType.F16, lengths_per_octave=4, cell_dtype=DType.I64, n_rows=n_rows)

    def quantizes(self, dtype: DType, *, importance: bool = False) -> bool:
        return blocks.writes(dtype, importance=importance)

    def quantize_rows(self, rows: Array, dtype: DType, importance: Array | None = None) -> Array:
        self._require_open()
        return blocks.quantize_rows(rows, dtype, importance)

    def dequantize_rows(self, data: Array, dtype: DType, n_columns: int) -> Array:
        self._require_open()
        return blocks.dequantize_rows(data, dtype, n_columns)

    def close(self) -> None:
        if self.is_forked_copy:
            return  # the threads that this would stop do not exist in a forked process
        with self.lock:
            if self._closed:
                return
            self._closed = True
            for executable in list(self._executables):
                executable.close()
            self.release(list(self._stored))
            if self.pinned is not None:
                self.pinned.close()
            for unit in self.units:
                unit.close()

    def exhausted(self) -> InsufficientMemoryError:
        """The error of a step that needed more memory than was reserved. The step can be tried again."""
        names = " or ".join(unit.name for unit in self.units)
        return InsufficientMemoryError(f"{names} ran out of memory in a step", memory=self.memory(), hint=_SMALLER)

    def _insufficient(
        self, device: str, what: Literal["weights", "cache", "graph"], size: int, layer: int
    ) -> InsufficientMemoryError:
        self.require_devices()  # a lost device has no memory either: report that
        report = self.memory()
        report.fail(device, what, size, layer)
        return InsufficientMemoryError(
            f"{device} cannot allocate {format_bytes(size)} for the {what}",
            memory=report,
            hint=_SMALLER,
        )

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the ggml backend is closed")
