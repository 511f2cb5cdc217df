"""Units: one device of a backend, opened, with what it can do. Other devices than the CPU are plain ones."""

from __future__ import annotations

from typing import Any

from hotshoe_core.backend import WeightData
from hotshoe_core.device import BackendParams, Device
from hotshoe_core.errors import DeviceLostError, NativeError
from hotshoe_ggml._native import device_facts, ffi, lib, library_of
from hotshoe_ggml.cpu.packed import Array, Done, PackedWeight

__all__ = ["Unit"]


class Unit:
    """A device with its library and its ggml backend.

    own_kernels: whether graphs may hold nodes of hotshoe's own, which run on the CPU. maps_pages: whether weights may
    stay in a mapped file. n_threads: of the host, for computing on the CPU. n_copying: threads that fill its memory at
    once.
    """

    own_kernels = False
    n_copying = 1  # a driver's queue takes one after the other

    def __init__(self, device: Device, params: BackendParams, n_threads: int) -> None:
        self.device = device
        self.name = device.name
        self.n_threads = n_threads
        self.library = library_of(device)
        facts = self.library.devices()[int(device.properties["index"])]
        self.handle = facts.handle
        self.maps_pages = facts.buffer_from_host_ptr
        self._native_name = facts.name
        self.backend = lib().ggml_backend_dev_init(self.handle, ffi.NULL)
        self._failures = self.library.failures(facts.name)
        if self.backend == ffi.NULL:
            why = f": {self._failures[1]}" if self._failures and self._failures[1] else ""
            raise NativeError(f"{self.name}: ggml could not initialise the device{why}")
        self.buffer_type = lib().ggml_backend_dev_buffer_type(self.handle)  # a device that was lost has another now
        set_threads = self.library.function("ggml_backend_set_n_threads", "ggml_backend_set_n_threads_t")
        if set_threads is not None:  # one that computes on the host, as the CPU and a BLAS do
            set_threads(self.backend, n_threads)

    def layouts(self) -> list[Any]:
        """Buffer types beside the default one, in which weights are rearranged for faster products."""
        return []

    def packs(self, weight: WeightData) -> bool:
        """Whether this weight is to be kept in the layout of our own product."""
        return False

    def pack(self, weight: WeightData, *, memory: Array | None, dry: bool, done: Done) -> PackedWeight:
        """The weight in that layout. ``done`` is told of each part of its bytes as it is packed. Raises MemoryError."""
        raise NotImplementedError(f"{self.name} packs no weights")

    def supports(self, node: Any) -> bool:
        """Whether the device runs this ggml node. ggml aborts the process on one that no device runs."""
        if node.op == lib().GGML_OP_CUSTOM and not self.own_kernels:
            return False  # the RPC device says yes to everything
        return bool(lib().ggml_backend_dev_supports_op(self.handle, node))

    def memory_free(self) -> int:
        """Bytes that the device has left now; 0 where its driver does not say."""
        return device_facts(self.handle).memory_free

    @property
    def can_be_lost(self) -> bool:
        return self._failures is not None

    def require_alive(self) -> None:
        """Raises DeviceLostError if the device was lost after it was opened here, be it back or not."""
        now = self.library.failures(self._native_name)
        if now is not None and self._failures is not None and now[0] != self._failures[0]:
            raise DeviceLostError(
                f"{self.name} ({self.device.description}) was lost: {now[1]}",
                hint="load the model again, on this device when it is back, or on another",
            )

    def work_size(self, cgraph: Any) -> int:
        """Bytes that the device allocates besides when it computes the graph for the first time."""
        return 0

    def close(self) -> None:
        lib().ggml_backend_free(self.backend)
