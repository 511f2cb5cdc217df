"""GgmlBackend: core's contract over ggml's devices."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from hotshoe_core.contract.backend import Backend, CacheConfig, Counters, Placement, Progress, WeightData
from hotshoe_core.contract.device import BackendParams, Device
from hotshoe_core.contract.memory import AllocationStatus, BackendMemory, Memory
from hotshoe_core.errors import ClosedError, DeviceLostError, InsufficientMemoryError, NativeError
from hotshoe_core.errors.text import format_bytes
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.leaf_checks import require_leaf
from hotshoe_core.tensors.tensor import TABLE, Shape, Tensor
from hotshoe_ggml import blocks
from hotshoe_ggml._log import logger
from hotshoe_ggml._native import lib
from hotshoe_ggml.buffers import OutOfMemory, state_buffer
from hotshoe_ggml.cpu.threads import default_threads
from hotshoe_ggml.executable import GgmlExecutable
from hotshoe_ggml.lowering import can_lower
from hotshoe_ggml.scheduler import Scheduler
from hotshoe_ggml.transfer import Meter
from hotshoe_ggml.unit import Unit
from hotshoe_ggml.units import open_units
from hotshoe_ggml.weights import Layout, WeightBuffer, hold, load_weights

__all__ = ["GgmlBackend"]

Array = np.ndarray[Any, Any]

_SMALLER = "use a smaller context or batch, a more quantized file, or another device"


class GgmlBackend(Backend):
    """One ggml engine over the devices chosen, the preferred one first."""

    honours = frozenset({"n_threads", "mmap", "repack", "flash_attention", "allocate"})

    def __init__(self, devices: Sequence[Device], params: BackendParams) -> None:
        self.name = "ggml"
        self.devices = tuple(devices)
        self.params = params
        self.counters = Counters()
        self.lock = threading.RLock()
        self.n_threads = params.n_threads if params.n_threads is not None else default_threads()
        if not 1 <= self.n_threads <= lib().GGML_MAX_N_THREADS:
            raise NativeError(f"n_threads is {self.n_threads}; expected 1 to {lib().GGML_MAX_N_THREADS}")
        self.units = open_units(devices, params, self.n_threads)
        if any(unit.may_round_to_bf16 for unit in self.units):
            self.honours = self.honours | {"matmul_precision"}
        self.rounds_to_bf16 = self.params.matmul_precision == "bf16" and "matmul_precision" in self.honours
        self._may_be_lost = [unit for unit in self.units if unit.can_be_lost]
        self._held: dict[Tensor, tuple[str, list[WeightBuffer], int]] = {}  # device, buffers, bytes
        self._executables: set[GgmlExecutable] = set()
        # the CPU by itself has one for each graph, which go on where they were: its memory is pages that were touched
        self.scheduler = Scheduler(self.units) if len(self.units) > 1 else None

    def load(
        self, weights: Sequence[WeightData], placement: Placement | None = None, progress: Progress | None = None
    ) -> dict[str, Tensor]:
        self.require_process()
        with self.lock:
            self._require_open()
            placement = self.require_placement(placement)
            meter = Meter(sum(w.data.nbytes for w in weights), progress)
            buffers: list[WeightBuffer] = []
            rounded = False
            try:
                for unit in self.units:
                    here = [w for w in weights if placement.of_weight(w.layer, w.uses) == unit.name]
                    rounded = rounded or (self.params.repack is True and any(map(unit.rounds, here)))
                    buffers += load_weights(
                        unit, here, mmap=self.params.mmap, repack=self.params.repack,
                        dry=not self.params.allocate, meter=meter,
                    )  # fmt: skip
                meter.finish()
                if self.rounds_to_bf16 and not rounded:
                    why = "no F16 weight, nor F32 one of an encoder, is multiplied by hotshoe's kernels on the CPU"
                    logger.warning("matmul_precision='bf16' has no effect: %s", why)
            except BaseException as e:
                for buffer in buffers:
                    buffer.free()
                if isinstance(e, OutOfMemory):
                    raise self._insufficient(e.device or unit.name, "weights", e.size, e.layer) from None
                raise
            buffer_of = {layout: b for b in buffers for layout in b.tensors}
            self._placement = placement
            loaded = {}
            for w in weights:
                tensor = Tensor("weight", (), {}, w.shape, w.dtype, name=w.name, layer=w.layer)
                device = placement.of_weight(w.layer, w.uses)
                first, second = Layout(w.key), Layout(w.key, of_product=True)
                loaded[w.key] = self._hold(tensor, w.key, device, buffer_of[first], buffer_of.get(second))
            return loaded

    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        self.require_process()
        with self.lock:
            self._require_open()
            require_leaf("state", name, shape, dtype, layer)
            unit = self.unit(self.placement.of_state(layer))
            try:
                buffer = state_buffer(unit, Layout(name), name, shape, dtype, dry=not self.params.allocate)
            except OutOfMemory as e:
                raise self._insufficient(unit.name, "cache", e.size, layer) from None
            tensor = Tensor("state", (), {}, tuple(shape), dtype, name=name, layer=layer)
            return self._hold(tensor, name, unit.name, buffer)

    def _hold(
        self, tensor: Tensor, key: str, device: str, buffer: WeightBuffer, product: WeightBuffer | None = None
    ) -> Tensor:
        """``product``: the buffer of the second layout, if there is one."""
        tensor.owner, tensor.handle = self, hold(key, buffer, product)
        held = [buffer]
        size = buffer.nbytes(Layout(key))
        if product is not None:
            # in one mapping they are the same pages
            size += product.nbytes(Layout(key, of_product=True)) if product is not buffer else 0
            held.append(product)
        self._held[tensor] = (device, held, size)
        return tensor

    def device_of_tensor(self, tensor: Tensor) -> str:
        return self._held[tensor][0]

    def release(self, tensors: Sequence[Tensor]) -> None:
        if self.foreign:
            return  # the threads it would end stayed in the parent
        with self.lock:
            for t in tensors:
                if t in self._held:
                    for executable in self._executables:
                        executable.invalidate(t)
                    for buffer in self._held.pop(t)[1]:
                        buffer.release_one()
                    t.handle = None

    def unit_of(self, layer: int) -> Unit:
        """The unit that computes a layer, by the placement."""
        if len(self.units) == 1:  # asked for every node of a graph
            return self.units[0]
        return self.unit(self.placement.device(layer))

    def unit(self, name: str) -> Unit:
        """The unit of the device called so."""
        return next(unit for unit in self.units if unit.name == name)

    def require_devices(self) -> None:
        """Raises DeviceLostError if one of them went away."""
        for unit in self._may_be_lost:
            try:
                unit.require_alive()
            except DeviceLostError as error:
                if self.on_lost is not None:
                    self.on_lost(unit.name, error.message)
                raise

    def own_kernels(self, node: Tensor) -> bool:
        """Whether this node may run hotshoe's kernels: on their device, or as the only way there is."""
        if self.unit_of(node.layer).own_kernels:
            return True
        return not TABLE[node.op].composite and not can_lower(node, own_kernels=False)

    def supports(self, node: Tensor) -> bool:
        return can_lower(node, own_kernels=self.own_kernels(node))

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
        if self.scheduler is not None and not self._executables:
            self.scheduler.free()

    def memory(self) -> BackendMemory:
        self.require_process()
        with self.lock:
            status = AllocationStatus.ALLOCATED if self.params.allocate else AllocationStatus.UNALLOCATED
            report = BackendMemory()
            for unit in self.units:
                report.on(unit.name)
            for tensor, (name, _, size) in self._held.items():
                device = report.on(name)
                where = device.weights if tensor.op == "weight" else device.cache
                where[tensor.layer] = Memory(where.get(tensor.layer, Memory()).size + size, status)
            shared = self.scheduler.sizes() if self.scheduler is not None and self.params.allocate else None
            for device in report.devices:
                sizes = [e.memory().get(device.device, Memory()).size for e in self._executables]
                if shared is not None:
                    sizes = [shared.get(device.device, 0)]
                elif self.scheduler is not None:
                    sizes = [max(sizes, default=0)]
                device.graph = Memory(sum(sizes), status)
            return report

    def memory_free(self) -> dict[str, int]:
        """As the drivers say now: a probe's figure may be of an earlier start."""
        self.require_process()
        with self.lock:
            self._require_open()
            chosen = {d.name for d in self.devices}
            return {u.name: u.memory_free() for u in self.units if u.name in chosen}

    def cache_config(self) -> CacheConfig:
        return CacheConfig(padding=256, mask_dtype=DType.F16)  # what its flash attention reads

    def quantizes(self, dtype: DType, *, importance: bool = False) -> bool:
        return blocks.writes(dtype, importance=importance)

    def quantize_rows(self, rows: Array, dtype: DType, importance: Array | None = None) -> Array:
        self._require_open()
        return blocks.quantize_rows(rows, dtype, importance)

    def dequantize_rows(self, data: Array, dtype: DType, n_columns: int) -> Array:
        self._require_open()
        return blocks.dequantize_rows(data, dtype, n_columns)

    def close(self) -> None:
        if self.foreign:
            return  # the threads it would end stayed in the parent
        with self.lock:
            if self._closed:
                return
            self._closed = True
            for executable in list(self._executables):
                executable.close()
            self.release(list(self._held))
            for unit in self.units:
                unit.close()

    def exhausted(self) -> InsufficientMemoryError:
        """For a step that a device had no memory for, beside what was reserved. It may be tried again."""
        names = " or ".join(unit.name for unit in self.units)
        return InsufficientMemoryError(f"{names} ran out of memory in a step", memory=self.memory(), hint=_SMALLER)

    def _insufficient(
        self, device: str, what: Literal["weights", "cache", "graph"], size: int, layer: int
    ) -> InsufficientMemoryError:
        self.require_devices()  # one that went away has no memory either
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
