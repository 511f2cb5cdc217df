"""Buffers: memory of a device with the tensors in it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.errors import DTypeError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml.memory.host import memory_owner
from hotshoe_ggml.memory.layouts import Layout, PackedLayout, PlainLayout, RearrangedLayout
from hotshoe_ggml.memory.transfer import ReadAhead
from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import NativeContext, OutOfMemory, address, extents

__all__ = ["ALIGNMENT", "Buffer", "PackedBuffer", "TensorBuffer"]

ALIGNMENT = 32  # TENSOR_ALIGNMENT of ggml's CPU backend, and GGUF's default


class Buffer(Protocol):
    """Memory with weights or states in it, each under a key."""

    def layout(self, key: Hashable) -> Layout: ...

    def nbytes(self, key: Hashable) -> int:
        """Bytes that the tensor takes, including the padding of its layout."""

    def release_one(self) -> None:
        """Count one tensor fewer. The last one frees the memory."""

    def free(self) -> None:
        """Free the memory. Further calls do nothing."""


class TensorBuffer:
    """A ggml buffer, the context of its tensors, and the host's memory that it uses, if any.

    rearranged: the buffer's type keeps weights in a layout that only ggml's products read.
    """

    def __init__(self, n_tensors: int) -> None:
        self.context = NativeContext(n_tensors)
        self.buffer: Any = ffi.NULL
        self.tensors: dict[Hashable, Any] = {}
        self.rearranged = False
        self._memory: list[np.ndarray[Any, Any]] = []
        self._ahead: ReadAhead | None = None
        self._left = n_tensors

    def add(self, key: Hashable, name: str, shape: tuple[int, ...], dtype: DType) -> Any:
        """Add a tensor under ``key``. Raises DTypeError if this ggml lays the type out differently from GGUF."""
        if lib().ggml_row_size(dtype.id, dtype.block_size) != dtype.block_bytes:
            raise DTypeError(f"{name}: this ggml's layout of {dtype.name} is not that of GGUF files")
        tensor = lib().ggml_new_tensor(self.context.pointer, dtype.id, 4, extents(shape))
        lib().ggml_set_name(tensor, name.encode()[:63])
        self.tensors[key] = tensor
        return tensor

    def allocate(self, buffer_type: Any, *, dry: bool) -> None:
        """Allocate memory of this type for all tensors, or none if ``dry``. Raises OutOfMemory."""
        g = lib()
        if dry:
            self.buffer = g.ggml_backend_buft_alloc_buffer(buffer_type, 0)
            for tensor in self.tensors.values():
                tensor.buffer = self.buffer
                tensor.data = ffi.cast("void *", ALIGNMENT)  # not NULL: ggml's planner takes it as allocated
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
        self._memory.extend(parts)
        self.buffer = g.ggml_backend_dev_buffer_from_host_ptr(device, ffi.cast("void *", start), size, largest)
        if self.buffer == ffi.NULL:
            raise OutOfMemory(size)
        for tensor, part in pairs:
            g.ggml_backend_tensor_alloc(self.buffer, tensor, ffi.cast("void *", address(part)))

    def map_pages(self, device: Any, pairs: Sequence[tuple[Any, WeightData]]) -> None:
        """Let each tensor use its weight's pages, all of one mapping. Raises OutOfMemory if the device refuses."""
        self.use_memory(device, [(tensor, w.data) for tensor, w in pairs])
        # weights that every token reads whole; a token reads only a part of an embedding or of experts
        whole = [w.data for _, w in pairs if w.uses == ("linear",)]
        if whole:
            self._ahead = ReadAhead(np.frombuffer(memory_owner(whole[0]), np.uint8), whole)

    def layout(self, key: Hashable) -> Layout:
        return RearrangedLayout(self.tensors[key]) if self.rearranged else PlainLayout(self.tensors[key])

    def nbytes(self, key: Hashable) -> int:
        buffer_type = lib().ggml_backend_buffer_get_type(self.buffer)
        return int(lib().ggml_backend_buft_get_alloc_size(buffer_type, self.tensors[key]))

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
        self._memory.clear()


class PackedBuffer:
    """One packed weight, as a buffer of one tensor."""

    def __init__(self, layout: PackedLayout) -> None:
        self._layout: PackedLayout | None = layout
        self._size = layout.nbytes

    def layout(self, key: Hashable) -> Layout:
        assert self._layout is not None, "released"
        return self._layout

    def nbytes(self, key: Hashable) -> int:
        return self._size

    def release_one(self) -> None:
        self.free()

    def free(self) -> None:
        self._layout = None  # a graph that still uses the weight keeps it
