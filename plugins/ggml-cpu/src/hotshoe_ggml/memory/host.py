"""Memory of the host: zeroed pages, and the pages of mapped files."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import address

__all__ = ["PinnedArrays", "drop_pages", "memory_owner", "zeros"]

_LINE = 64  # bytes


def memory_owner(data: Any) -> Any:
    """The object that owns an array's memory."""
    while isinstance(data, np.ndarray):
        data = data.base
    return data.obj if isinstance(data, memoryview) else data


def zeros(nbytes: int) -> np.ndarray[Any, Any]:
    """Zeroed memory from the start of a page. Linux provides each page when it is written. Raises MemoryError."""
    if not nbytes:
        return np.zeros(0, np.uint8)
    # not by NumPy: calloc clears memory that it reuses, and NumPy requests huge pages, which can be slow to get
    try:
        if sys.platform == "win32":
            return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
        return np.frombuffer(mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    except OSError as e:
        raise MemoryError(str(e)) from None


def drop_pages(data: np.ndarray[Any, Any]) -> None:
    """Release the pages of a mapped file after they were copied. The system reads them again when needed."""
    root = memory_owner(data)
    if sys.platform == "win32" or not isinstance(root, mmap.mmap):
        return
    offset = address(data) - address(np.frombuffer(root, np.uint8))
    start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (offset + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < stop:
        root.madvise(mmap.MADV_DONTNEED, start, stop - start)


class PinnedArrays:
    """Arrays that a device writes by itself, without a copy by its driver. Their pages stay where they are.

    buffer_type: the device's for memory of the host. ``arrays`` is empty if there is no memory.
    """

    def __init__(self, buffer_type: Any, shapes: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        sizes = [int(np.prod(shape, dtype=np.int64)) * dtype.itemsize for shape, dtype in shapes]
        starts = np.cumsum([0, *(-(-size // _LINE) * _LINE for size in sizes)]).tolist()
        self.arrays: list[np.ndarray[Any, Any]] = []
        self._buffer = lib().ggml_backend_buft_alloc_buffer(buffer_type, starts[-1])
        if self._buffer != ffi.NULL:
            base = lib().ggml_backend_buffer_get_base(self._buffer)
            memory = np.frombuffer(ffi.buffer(base, starts[-1]), np.uint8)
            for start, size, (shape, dtype) in zip(starts, sizes, shapes):
                self.arrays.append(memory[start : start + size].view(dtype).reshape(shape))

    def free(self) -> None:
        """Free the memory. Nothing may use the arrays any longer. Further calls do nothing."""
        self.arrays = []
        if self._buffer != ffi.NULL:
            lib().ggml_backend_buffer_free(self._buffer)
            self._buffer = ffi.NULL
