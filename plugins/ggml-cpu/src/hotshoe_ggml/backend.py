"""GgmlBackend: core's contract over ggml's devices."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal

from hotshoe_core.backend import Backend, CacheConfig, Counters, Placement, Progress, WeightData
from hotshoe_core.device import BackendParams, Device
from hotshoe_core.dtypes import DType
from hotshoe_core.errors import ClosedError, InsufficientMemoryError, NativeError
from hotshoe_core.graph import Graph
from hotshoe_core.memory import AllocationStatus, BackendMemory, Memory, format_bytes
from hotshoe_core.tensor import Shape, Tensor, require_sizes
from hotshoe_ggml._executable import GgmlExecutable
from hotshoe_ggml._native import ffi, lib, load_backend
from hotshoe_ggml._threads import default_threads
from hotshoe_ggml._weights import (
    Holding,
    OutOfMemory,
    PackedHolding,
    Tied,
    hold_state,
    hold_weights,
    linear_name,
    split_tied,
)
from hotshoe_ggml.lowering import can_lower

__all__ = ["GgmlBackend"]

AnyHolding = Holding | PackedHolding


class GgmlBackend(Backend):
    """One ggml engine over the devices chosen, the preferred one first."""

    honours = frozenset({"n_threads", "mmap", "repack", "flash_attention", "allocate"})

    def __init__(self, devices: Sequence[Device], params: BackendParams) -> None:
        if len(devices) != 1:
            raise NativeError(
                f"got {len(devices)} devices ({', '.join(d.name for d in devices)}); this version computes on one",
                hint="name one device",
            )
        (device,) = devices
        assert device.library is not None
        self.name = "ggml"
        self.devices = tuple(devices)
        self.params = params
        self.counters = Counters()
        self.lock = threading.RLock()
        self.n_threads = params.n_threads if params.n_threads is not None else default_threads()
        if not 1 <= self.n_threads <= lib().GGML_MAX_N_THREADS:
            raise NativeError(f"n_threads is {self.n_threads}; expected 1 to {lib().GGML_MAX_N_THREADS}")
        self.library = load_backend(device.library)
        self._pool: Any = ffi.NULL
        self.device = self.library.devices()[int(device.properties["index"])].handle
        self.native_devices = [self.device]
        self.native_backends = [self._init(self.device)]
        self.cpu_only = lib().ggml_backend_dev_type(self.device) == lib().GGML_BACKEND_DEVICE_TYPE_CPU
        self._held: dict[Tensor, tuple[list[AnyHolding], int]] = {}
        self._executables: set[GgmlExecutable] = set()

    def _init(self, device: Any) -> Any:
        backend = lib().ggml_backend_dev_init(device, ffi.NULL)
        if backend == ffi.NULL:
            raise NativeError(f"{self.devices[0].name}: ggml could not initialise the device")
        set_threads = self.library.function("ggml_backend_set_n_threads", "ggml_backend_set_n_threads_t")
        if set_threads is not None:
            set_threads(backend, self.n_threads)
            self._start_pool(backend)
        return backend

    def _start_pool(self, backend: Any) -> None:
        """Threads that stay: without a pool of ours ggml starts and ends them with every graph."""
        params = ffi.new("struct ggml_threadpool_params *")
        lib().ggml_threadpool_params_init(params, self.n_threads)
        params.poll = 1  # of 100: after work, look for more for some 50 ms, the time between two steps, not for 3 s
        self._pool = self.library.handle.ggml_threadpool_new(params)
        self.library.handle.ggml_backend_cpu_set_threadpool(backend, self._pool)

    def load(
        self, weights: Sequence[WeightData], placement: Placement | None = None, progress: Progress | None = None
    ) -> dict[str, Tensor]:
        self.require_process()
        with self.lock:
            self._require_open()
            placement = self.require_placement(placement)
            try:
                holdings = hold_weights(
                    self.library,
                    self.device,
                    split_tied(weights) if self.params.repack else weights,
                    mmap=self.params.mmap,
                    repack=self.params.repack,
                    own_kernels=self.cpu_only,
                    dry=not self.params.allocate,
                    n_threads=self.n_threads,
                    progress=progress,
                )
            except OutOfMemory as e:
                raise self._insufficient("weights", e.size, -1) from None
            where = {name: h for h in holdings for name in h.tensors}
            loaded = {}
            for w in weights:
                tensor = Tensor("weight", (), {}, w.shape, w.dtype, name=w.name, layer=w.layer)
                loaded[w.name] = self._hold(tensor, where[w.name], where.get(linear_name(w.name)))
            self._placement = placement
            return loaded

    def state(self, shape: Shape, dtype: DType, name: str, layer: int = -1) -> Tensor:
        self.require_process()
        with self.lock:
            self._require_open()
            require_sizes(f"state {name!r}", shape)
            try:
                holding = hold_state(self.device, shape, dtype, name, dry=not self.params.allocate)
            except OutOfMemory as e:
                raise self._insufficient("cache", e.size, layer) from None
            tensor = Tensor("state", (), {}, tuple(shape), dtype, name=name, layer=layer)
            return self._hold(tensor, holding)

    def _hold(self, tensor: Tensor, holding: AnyHolding, product: AnyHolding | None = None) -> Tensor:
        """``product``: where the layout for products lies, if it is one of its own."""
        tensor.owner, tensor.handle = self, holding.tensors[tensor.name]
        held = [holding]
        size = holding.nbytes(tensor.name)
        if product is not None:
            name = linear_name(tensor.name)
            tensor.handle = Tied(tensor.handle, product.tensors[name])
            size += product.nbytes(name) if product is not holding else 0  # in one mapping they are the same pages
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
                        executable.lose(t)
                    for holding in self._held.pop(t)[0]:
                        holding.release_one()
                    t.handle = None

    def supports(self, node: Tensor) -> bool:
        return can_lower(node)

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
            for backend in self.native_backends:
                lib().ggml_backend_free(backend)
            if self._pool != ffi.NULL:
                self.library.handle.ggml_threadpool_free(self._pool)

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
