"""Buffers: memory of a device that ggml tensors live in, as weights and states do."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.errors import DTypeError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml._native import ffi, lib
from hotshoe_ggml.lowering import extents
from hotshoe_ggml.transfer import ReadAhead, address, memory_owner, zeros

if TYPE_CHECKING:
    from hotshoe_ggml.unit import Unit

__all__ = ["ALIGNMENT", "NativeContext", "OutOfMemory", "TensorBuffer", "room_for", "state_buffer"]

_CONTEXT_ALIGNMENT = 64  # more than GGML_MEM_ALIGN
ALIGNMENT = 32  # TENSOR_ALIGNMENT of ggml's CPU backend, and GGUF's default


class OutOfMemory(Exception):  # noqa: N818  (told apart from MemoryError)
    """A buffer of ``size`` bytes was refused by the device called ``device``, for this layer."""

    def __init__(self, size: int, device: str = "", layer: int = -1) -> None:
        super().__init__(size)
        self.size = size
        self.device = device
        self.layer = layer


class TensorBuffer:
    """A ggml buffer, the context its tensors live in, and whatever memory of the host's it is over.

    It is freed when the last of its tensors is released. rearranged: its type lays weights out in a way of its own.
    """

    def __init__(self, n_tensors: int) -> None:
        self.context = NativeContext(n_tensors)
        self.buffer: Any = ffi.NULL
        self.tensors: dict[Hashable, Any] = {}
        self.rearranged = False
        self._held: list[Any] = []
        self._ahead: ReadAhead | None = None
        self._left = n_tensors

    def add(self, key: Hashable, name: str, shape: tuple[int, ...], dtype: DType) -> Any:
        """A new tensor, which ``tensors`` has under ``key``. Raises DTypeError if ggml lays the type out otherwise."""
        if lib().ggml_row_size(dtype.id, dtype.block_size) != dtype.block_bytes:
            raise DTypeError(f"{name}: {dtype.name} is laid out otherwise in this ggml than in GGUF files")
        tensor = lib().ggml_new_tensor(self.context.pointer, dtype.id, 4, extents(shape))
        lib().ggml_set_name(tensor, name.encode()[:63])
        self.tensors[key] = tensor
        return tensor

    def allocate(self, buffer_type: Any, *, dry: bool) -> None:
        """Memory of this type for all tensors. Raises OutOfMemory."""
        g = lib()
        if dry:
            self.buffer = g.ggml_backend_buft_alloc_buffer(buffer_type, 0)
            for tensor in self.tensors.values():
                tensor.buffer = self.buffer
                tensor.data = ffi.cast("void *", ALIGNMENT)  # "allocated", as far as ggml's planner asks
        else:
            self.buffer = g.ggml_backend_alloc_ctx_tensors_from_buft(self.context.pointer, buffer_type)
            if self.buffer == ffi.NULL:
                raise OutOfMemory(g.ggml_backend_alloc_ctx_tensors_from_buft_size(self.context.pointer, buffer_type))

    def use_memory(self, device: Any, pairs: Sequence[tuple[Any, np.ndarray[Any, Any]]]) -> None:
        """Give each tensor its part of one piece of the host's memory. Raises OutOfMemory if the device refuses."""
        g = lib()
        parts = [part for _, part in pairs]
        start = min(map(address, parts))
        size = max(address(part) + part.nbytes for part in parts) - start
        largest = max(part.nbytes for part in parts)
        self._held.extend(parts)
        self.buffer = g.ggml_backend_dev_buffer_from_host_ptr(device, ffi.cast("void *", start), size, largest)
        if self.buffer == ffi.NULL:
            raise OutOfMemory(size)
        for tensor, part in pairs:
            g.ggml_backend_tensor_alloc(self.buffer, tensor, ffi.cast("void *", address(part)))

    def map_pages(self, device: Any, pairs: Sequence[tuple[Any, WeightData]]) -> None:
        """Let each tensor use its weight's pages, all of one mapping. Raises OutOfMemory if the device refuses."""
        self.use_memory(device, [(tensor, w.data) for tensor, w in pairs])
        # those that every token reads whole; of an embedding or an expert it takes a part
        whole = [w.data for _, w in pairs if w.uses == ("linear",)]
        if whole:
            self._ahead = ReadAhead(np.frombuffer(memory_owner(whole[0]), np.uint8), whole)

    def nbytes(self, key: Hashable) -> int:
        """Bytes that the tensor takes in this buffer, including the padding of its layout."""
        tensor = self.tensors[key]
        return int(lib().ggml_backend_buft_get_alloc_size(lib().ggml_backend_buffer_get_type(self.buffer), tensor))

    def release_one(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.free()

    def free(self) -> None:
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead = None
        if self.buffer != ffi.NULL:
            lib().ggml_backend_buffer_free(self.buffer)
            self.buffer = ffi.NULL
        self.context.free()
        self._held.clear()


def state_buffer(
    unit: Unit, key: Hashable, name: str, shape: tuple[int, ...], dtype: DType, *, dry: bool
) -> TensorBuffer:
    """One zeroed tensor in a buffer of its own. Raises OutOfMemory.

    Where the device computes in the host's memory, pages are taken as they are written: of a long context those used.
    """
    buffer = TensorBuffer(1)
    g = lib()
    try:
        tensor = buffer.add(key, name, shape, dtype)
        if unit.maps_pages and not dry and g.ggml_backend_buft_is_host(unit.buffer_type):
            nbytes = int(g.ggml_nbytes(tensor))
            try:
                buffer.use_memory(unit.handle, [(tensor, zeros(max(nbytes, 1)))])
            except MemoryError:
                raise OutOfMemory(nbytes) from None
        else:
            buffer.allocate(unit.buffer_type, dry=dry)
            if not dry:
                g.ggml_backend_buffer_clear(buffer.buffer, 0)
    except BaseException:
        buffer.free()
        raise
    return buffer


class NativeContext:
    """A ggml context: memory for the descriptions of tensors and graphs, whose data lies elsewhere.

    The memory is ours: where ggml gets none for itself, it ends the process. Raises OutOfMemory.
    """

    def __init__(self, n_tensors: int, n_graph: int = 0) -> None:
        g = lib()
        size = max(64, n_tensors * g.ggml_tensor_overhead())
        if n_graph:
            size += g.ggml_graph_overhead_custom(n_graph, False)
        self._memory = room_for(size + _CONTEXT_ALIGNMENT)
        start = address(self._memory)
        start += -start % _CONTEXT_ALIGNMENT
        self.pointer = g.ggml_init({"mem_size": size, "mem_buffer": ffi.cast("void *", start), "no_alloc": True})

    def free(self) -> None:
        """Further calls do nothing."""
        if self.pointer != ffi.NULL:
            lib().ggml_free(self.pointer)
            self.pointer = ffi.NULL


def room_for(size: int) -> np.ndarray[Any, Any]:
    """So many bytes, not touched. Raises OutOfMemory. Held for a moment, they show that ggml will find as many."""
    try:
        return np.empty(size, np.uint8)
    except MemoryError:
        raise OutOfMemory(size) from None
