"""Unit: one opened device of ggml, and what it can do. It is also the base class of CpuUnit and VulkanUnit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.contract.device import BackendParams, Device
from hotshoe_core.errors import DeviceLostError, NativeError
from hotshoe_core.graphs.graph import Graph
from hotshoe_ggml.claims import fails, overstated
from hotshoe_ggml.lowering import Builder, DeviceBuilder
from hotshoe_ggml.memory.layouts import PackedLayout
from hotshoe_ggml.memory.transfer import Meter
from hotshoe_ggml.native import device_facts, ffi, lib, library_of

__all__ = ["Unit"]

_N_COPYING = {"CUDA": 4, "ROCm": 4, "MUSA": 4}
"""How many threads copy, for libraries that give each thread a stream of its own. The pages of a mapped file are not
pinned: a thread copies them to pinned memory first, which one thread does more slowly than the bus transports them. The
other libraries have one queue, or one connection, for all threads.
"""


_FAST_MATH = frozenset({"CUDA", "ROCm", "MUSA", "Vulkan"})
"""Libraries whose kernels multiply F32 in TF32 or F16, and are built with the compiler's fast mathematics."""

_CAPTURING = frozenset({"CUDA", "ROCm", "MUSA"})


class Unit:
    """An opened device, with its library and its ``ggml_backend_t``. It uses only ggml's own ops.

    Raises NativeError if ggml cannot initialise the device.
    """

    runs_custom_kernels = False
    """Whether the unit runs our kernels (GGML_OP_CUSTOM), which its builder also uses for ops that ggml lacks."""

    reads_lists = False
    """Whether attention that reads lists of cells is faster than with masks."""

    builder_type: ClassVar[type[DeviceBuilder]] = DeviceBuilder
    """The class of ``builder``, for units that run no kernels of ours."""

    can_pack = False
    """Whether ``pack`` is implemented."""

    may_round_to_bf16 = False
    """Whether ``matmul_precision="bf16"`` makes products faster."""

    n_copying: int
    """Threads that copy into the device's memory at the same time."""

    maps_pages: bool
    """Whether weights may stay in a mapped file."""

    captures: bool
    """Whether the library captures a graph that it gets twice, and then replays it."""

    copies_later: bool
    """Whether copies are queued behind what the device computes. Otherwise a copy waits for it."""

    def __init__(self, device: Device, params: BackendParams, n_threads: int) -> None:
        self.device = device
        self.name = device.name
        self.params = params
        self.n_threads = n_threads
        self.library = library_of(device)
        facts = self.library.devices()[int(device.properties["index"])]
        self.device_pointer = facts.pointer
        self.maps_pages = facts.buffer_from_host_ptr
        self.copies_later = facts.asynchronous
        self._native_name = facts.name
        self.n_copying = min(n_threads, _N_COPYING.get(self.library.kind, 1))
        self.fast_math = self.library.kind in _FAST_MATH
        self.captures = self.library.kind in _CAPTURING
        self._overstated = overstated(self.library.kind)
        self.ggml_backend = lib().ggml_backend_dev_init(self.device_pointer, ffi.NULL)
        self._failures = self.library.failures(facts.name)
        if self.ggml_backend == ffi.NULL:
            why = f": {self._failures[1]}" if self._failures and self._failures[1] else ""
            raise NativeError(f"{self.name}: ggml could not initialise the device{why}")
        self.buffer_type = lib().ggml_backend_dev_buffer_type(self.device_pointer)  # another one after a loss
        self.host_buffer_type = ffi.NULL
        """Memory of the host that the device copies from and to faster: pinned pages. NULL if the device has none."""
        if facts.host_buffer:
            self.host_buffer_type = lib().ggml_backend_dev_host_buffer_type(self.device_pointer)
        set_threads = self.library.function("ggml_backend_set_n_threads", "ggml_backend_set_n_threads_t")
        if set_threads is not None:  # a device that computes on the host, such as the CPU and a BLAS
            set_threads(self.ggml_backend, n_threads)

    def builder(self, context: Any, keep_alive: list[Any]) -> Builder:
        """A builder of this unit's nodes in a ggml context. keep_alive: see Builder."""
        return self.builder_type(context, keep_alive, flash=self.params.flash_attention, supports=self.supports)

    def supports(self, node: Any) -> bool:
        """Whether the device runs this ggml node. ggml aborts the process on a node that no device runs."""
        if not self.runs_custom_kernels and (node.op == lib().GGML_OP_CUSTOM or fails(self._overstated, node)):
            return False
        return self._claims(node)

    def _claims(self, node: Any) -> bool:
        """Whether the library says that the device runs this node."""
        return bool(lib().ggml_backend_dev_supports_op(self.device_pointer, node))

    def buffer_types(self) -> list[Any]:
        """ggml's additional buffer types, in which weights are rearranged for faster products."""
        return []

    def rounds(self, weight: WeightData) -> bool:
        """Whether ``matmul_precision="bf16"`` changes products with this weight."""
        return False

    def multiplies_in_f32(self, weight: WeightData) -> bool:
        """Whether neither the weight nor what it multiplies is rounded if ``matmul_precision="f32"``."""
        return False

    def packs(self, weight: WeightData) -> bool:
        """Whether ``pack`` should pack this weight: its products are faster then."""
        return False

    def is_batch_invariant(self, weight: WeightData) -> bool:
        """Whether products with this weight, if it is packed where possible, have the same bits for any rows."""
        return False

    def pack(self, weights: Sequence[WeightData], *, dry: bool, meter: Meter) -> Sequence[PackedLayout]:
        """Load these weights, and pack them for the unit's kernels.

        dry: allocate no memory; only compute the sizes. Raises OutOfMemory.
        """
        raise NotImplementedError(f"{self.name} packs no weights")

    def begin_step(self, graph: Graph, *, alone: bool) -> None:
        """Called before a graph is computed. alone: on this unit only."""

    def end_step(self) -> None:
        """Called when it was computed, or failed."""

    def memory_free(self) -> int:
        """Free bytes of the device now; 0 if its driver does not say."""
        return device_facts(self.device_pointer).memory_free

    @property
    def can_be_lost(self) -> bool:
        """Whether the library reports the loss of devices: then ``require_alive`` has an effect."""
        return self._failures is not None

    def require_alive(self) -> None:
        """Raise DeviceLostError if the device was lost after it was opened, even if it is back."""
        now = self.library.failures(self._native_name)
        if now is not None and self._failures is not None and now[0] != self._failures[0]:
            raise DeviceLostError(
                f"{self.name} ({self.device.description}) was lost: {now[1]}",
                hint="load the model again, on this device when it is back, or on another",
            )

    def tuning(self) -> dict[str, str]:
        """What was found while it loaded and computed: see ``Backend.tuning``."""
        return {}

    def work_size(self, cgraph: Any) -> int:
        """Bytes that the device allocates in addition when it computes the graph for the first time."""
        return 0

    def close(self) -> None:
        lib().ggml_backend_free(self.ggml_backend)
