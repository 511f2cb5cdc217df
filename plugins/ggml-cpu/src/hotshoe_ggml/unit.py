"""Units: one device of a backend, opened, with what it can do. Other devices than the CPU are plain ones."""

from __future__ import annotations

from functools import cache
from typing import Any

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.contract.device import BackendParams, Device
from hotshoe_core.errors import DeviceLostError, NativeError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml._native import device_facts, ffi, lib, library_of
from hotshoe_ggml.cpu.packed import PackedWeight

__all__ = ["Unit", "is_view"]


class Unit:
    """A device with its library and its ggml backend.

    own_kernels: whether graphs may hold nodes of hotshoe's own, which run on the CPU. may_round_to_bf16: whether
    ``matmul_precision="bf16"`` makes products faster. maps_pages: whether weights may stay in a mapped file. n_threads:
    of the host, for computing on the CPU. n_copying: threads that fill its memory at once.
    """

    own_kernels = False
    may_round_to_bf16 = False
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
        vulkan = self._native_name.startswith("Vulkan")
        self._alignment = int(lib().ggml_backend_buft_get_alignment(self.buffer_type)) if vulkan else 1
        set_threads = self.library.function("ggml_backend_set_n_threads", "ggml_backend_set_n_threads_t")
        if set_threads is not None:  # one that computes on the host, as the CPU and a BLAS do
            set_threads(self.backend, n_threads)

    def layouts(self) -> list[Any]:
        """Buffer types beside the default one, in which weights are rearranged for faster products."""
        return []

    def rounds(self, weight: WeightData) -> bool:
        """Whether ``matmul_precision`` changes products with this weight."""
        return False

    def packs(self, weight: WeightData) -> bool:
        """Whether this weight is to be kept in the layout of our own product."""
        return False

    def packed(self, weight: WeightData) -> PackedWeight:
        """The weight to be packed in that layout."""
        raise NotImplementedError(f"{self.name} packs no weights")

    def supports(self, node: Any) -> bool:
        """Whether the device runs this ggml node. ggml aborts the process on one that no device runs."""
        if not self.own_kernels and (node.op == lib().GGML_OP_CUSTOM or _is_overstated(node)):
            return False
        if self._alignment > 1 and _begins_between(node, self._alignment):
            return False
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


def is_view(node: Any) -> bool:
    """Whether the node only looks at its source's memory in another way."""
    g = lib()
    views = (g.GGML_OP_RESHAPE, g.GGML_OP_VIEW, g.GGML_OP_PERMUTE, g.GGML_OP_TRANSPOSE)
    return node.view_src != ffi.NULL and node.op in views


_WIDE = {DType.I64.id, DType.F64.id}
_WHOLE_HEADS = 64


def _is_overstated(node: Any) -> bool:
    """Whether ggml's devices say that they run the node, but abort, or give wrong numbers.

    RPC's says so of everything. RWKV and gated linear attention are made for heads of 64, in CUDA also of 128, and
    copies for elements of 2 and 4 bytes.
    """
    g = lib()
    if node.op in (g.GGML_OP_RWKV_WKV6, g.GGML_OP_RWKV_WKV7, g.GGML_OP_GATED_LINEAR_ATTN):
        return bool(node.src[0].ne[0] != _WHOLE_HEADS)
    return node.type in _WIDE


_AT_ANY_PLACE = (
    "ADD", "SUB", "MUL", "DIV", "SQR", "SQRT", "SIN", "COS", "LOG", "UNARY", "GLU", "SCALE", "CLAMP", "SUM_ROWS",
    "MEAN", "CPY", "CONT", "DUP", "CONCAT", "REPEAT", "PAD", "GET_ROWS", "SET_ROWS", "RMS_NORM", "L2_NORM", "ROPE",
)  # fmt: skip


@cache
def _ops_at_any_place() -> frozenset[int]:
    return frozenset(getattr(lib(), f"GGML_OP_{name}") for name in _AT_ANY_PLACE)


def _begins_between(node: Any, alignment: int) -> bool:
    """Whether a source begins where Vulkan can bind no buffer, and the shader does not know of that.

    It asserts then, or drops the remainder where a block of a quantized type is no multiple of it.
    """
    sources = [s for s in node.src if s != ffi.NULL and s.view_offs % alignment]
    if not sources or is_view(node):
        return False
    return node.op not in _ops_at_any_place() or any(lib().ggml_is_quantized(s.type) for s in sources)
