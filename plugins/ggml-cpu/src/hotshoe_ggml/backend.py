"""GgmlBackend: core's contract over ggml's devices."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

from hotshoe_core.backend import Backend, CacheConfig, Counters, Placement, Progress, WeightData
from hotshoe_core.device import BackendParams, Device
from hotshoe_core.dtypes import DType
from hotshoe_core.errors import ClosedError, InsufficientMemoryError, NativeError
from hotshoe_core.graph import Graph
from hotshoe_core.memory import AllocationStatus, BackendMemory, Memory, format_bytes
from hotshoe_core.tensor import Shape, Tensor, require_leaf
from hotshoe_ggml._native import lib, load_backend
from hotshoe_ggml.buffers import OutOfMemory, state_buffer
from hotshoe_ggml.cpu.threads import default_threads
from hotshoe_ggml.cpu.unit import CpuUnit
from hotshoe_ggml.executable import GgmlExecutable
from hotshoe_ggml.lowering import can_lower
from hotshoe_ggml.transfer import Meter
from hotshoe_ggml.unit import Unit
from hotshoe_ggml.weights import WeightBuffer, hold, load_weights, product_name, split_by_use

__all__ = ["GgmlBackend"]


class GgmlBackend(Backend):
    """One ggml engine over the devices chosen, the preferred one first."""

    honours = frozenset({"n_threads", "mmap", "repack", "flash_attention", "allocate"})

    def __init__(self, devices: Sequence[Device], params: BackendParams) -> None:
        if len(devices) != 1:
            raise NativeError(
                f"got {len(devices)} devices ({', '.join(d.name for d in devices)}); this version computes on one",
                hint="name one device",
            )
        self.name = "ggml"
        self.devices = tuple(devices)
        self.params = params
        self.counters = Counters()
        self.lock = threading.RLock()
        self.n_threads = params.n_threads if params.n_threads is not None else default_threads()
        if not 1 <= self.n_threads <= lib().GGML_MAX_N_THREADS:
            raise NativeError(f"n_threads is {self.n_threads}; expected 1 to {lib().GGML_MAX_N_THREADS}")
        self.units = [_open_unit(device, params, self.n_threads) for device in devices]
        self._held: dict[Tensor, tuple[list[WeightBuffer], int]] = {}
        self._executables: set[GgmlExecutable] = set()

    def load(
        self, weights: Sequence[WeightData], placement: Placement | None = None, progress: Progress | None = None
    ) -> dict[str, Tensor]:
        self.require_process()
        with self.lock:
            self._require_open()
            placement = self.require_placement(placement)
            (unit,) = self.units
            try:
                buffers = load_weights(
                    unit,
                    split_by_use(weights) if self.params.repack else weights,
                    mmap=self.params.mmap,
                    repack=self.params.repack,
                    dry=not self.params.allocate,
                    meter=Meter(sum(w.data.nbytes for w in weights), progress),
                )
            except OutOfMemory as e:
                raise self._insufficient("weights", e.size, e.layer) from None
            where = {name: b for b in buffers for name in b.tensors}
            loaded = {}
            for w in weights:
                tensor = Tensor("weight", (), {}, w.shape, w.dtype, name=w.name, layer=w.layer)
                loaded[w.name] = self._hold(tensor, where[w.name], where.get(product_name(w.name)))
            self._placement = placement
            return loaded

    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        self.require_process()
        with self.lock:
            self._require_open()
            require_leaf("state", name, shape, dtype, layer)
            try:
                buffer = state_buffer(self.units[0], shape, dtype, name, dry=not self.params.allocate)
            except OutOfMemory as e:
                raise self._insufficient("cache", e.size, layer) from None
            tensor = Tensor("state", (), {}, tuple(shape), dtype, name=name, layer=layer)
            return self._hold(tensor, buffer)

    def _hold(self, tensor: Tensor, buffer: WeightBuffer, product: WeightBuffer | None = None) -> Tensor:
        """``product``: where the layout for products lies, if it is one of its own."""
        tensor.owner, tensor.handle = self, hold(tensor.name, buffer, product)
        held = [buffer]
        size = buffer.nbytes(tensor.name)
        if product is not None:
            # in one mapping they are the same pages
            size += product.nbytes(product_name(tensor.name)) if product is not buffer else 0
            held.append(product)
        self._held[tensor] = (held, size)
        return tensor

    def release(self, tensors: Sequence[Tensor]) -> None:
        if self.foreign:
            return  # the threads it would end stayed in the parent
        with self.lock:
            for t in tensors:
                if t in self._held:
                    for executable in self._executables:
                        executable.invalidate(t)
                    for buffer in self._held.pop(t)[0]:
                        buffer.release_one()
                    t.handle = None

    def supports(self, node: Tensor) -> bool:
        return can_lower(node, own_kernels=all(unit.own_kernels for unit in self.units))

    def compile(self, graph: Graph) -> GgmlExecutable:
        self.require_process()
        with self.lock:
            self._require_open()
            try:
                executable = GgmlExecutable(self, graph)
            except OutOfMemory as e:
                raise self._insufficient("graph", e.size, -1) from None
            self._executables.add(executable)
            self.counters.compiled += 1
            return executable

    def forget(self, executable: GgmlExecutable) -> None:
        self._executables.discard(executable)

    def memory(self) -> BackendMemory:
        self.require_process()
        with self.lock:
            status = AllocationStatus.ALLOCATED if self.params.allocate else AllocationStatus.UNALLOCATED
            report = BackendMemory()
            device = report.on(self.devices[0].name)
            for tensor, (_, size) in self._held.items():
                where = device.weights if tensor.op == "weight" else device.cache
                where[tensor.layer] = Memory(where.get(tensor.layer, Memory()).size + size, status)
            device.graph = Memory(sum(m.size for e in self._executables for m in e.memory().values()), status)
            return report

    def cache_config(self) -> CacheConfig:
        return CacheConfig(padding=256, mask_dtype=DType.F16)  # what its flash attention reads

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

    def _insufficient(
        self, what: Literal["weights", "cache", "graph"], size: int, layer: int
    ) -> InsufficientMemoryError:
        report = self.memory()
        report.fail(self.devices[0].name, what, size, layer)
        return InsufficientMemoryError(
            f"{self.devices[0].name} has no {format_bytes(size)} for the {what}",
            memory=report,
            hint="use a smaller context or batch, a more quantized file, or another device",
        )

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the ggml backend is closed")


def _open_unit(device: Device, params: BackendParams, n_threads: int) -> Unit:
    assert device.library is not None
    facts = load_backend(device.library).devices()[int(device.properties["index"])]
    kind = CpuUnit if facts.type == lib().GGML_BACKEND_DEVICE_TYPE_CPU else Unit
    return kind(device, params, n_threads)
