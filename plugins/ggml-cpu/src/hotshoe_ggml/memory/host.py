"""Memory of the host: zeroed pages, and the pages of mapped files."""

from __future__ import annotations

import math
import mmap
import os
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from hotshoe_ggml.native import ffi, kernels, lib
from hotshoe_ggml.native.context import address

__all__ = ["PinnedPool", "drop_pages", "is_in_memory", "is_mapped", "memory_owner", "zeros"]

_MOST_PINNED = 128 << 20  # bytes: the system cannot move or swap them


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
    if is_mapped(data):
        kernels().hotshoe_release_pages(ffi.cast("void *", address(data)), data.nbytes)


def is_mapped(data: np.ndarray[Any, Any]) -> bool:
    """Whether the array is part of a mapped file."""
    return isinstance(memory_owner(data), mmap.mmap)


def is_in_memory(data: np.ndarray[Any, Any]) -> bool:
    """Whether the first and the last page of a part of a mapped file are in memory. False where Linux does not say."""
    if sys.platform != "linux" or not is_mapped(data) or not data.nbytes:
        return False
    import ctypes  # 2 ms

    libc, found = ctypes.CDLL(None), ctypes.c_ubyte()
    start = address(data)
    pages = (at // mmap.PAGESIZE * mmap.PAGESIZE for at in (start, start + data.nbytes - 1))
    return all(
        libc.mincore(ctypes.c_void_p(page), ctypes.c_size_t(1), ctypes.byref(found)) == 0 and found.value & 1
        for page in pages
    )


class PinnedPool:
    """Memory of the host that a device writes by itself, without a copy by its driver. It is used again and again.

    buffer_type: the device's for memory of the host.
    """

    def __init__(self, buffer_type: Any) -> None:
        self._buffer_type = buffer_type
        self._free: dict[int, list[tuple[Any, int]]] = {}  # ggml's buffers that no array uses, with their addresses
        self._n_bytes = 0  # of all buffers
        self._closed = False
        self._process = os.getpid()

    def array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
        """Return a new array, or None if the limit is reached or the system has no such memory.

        The caller holds the backend's lock. ``give_back`` takes no lock: an array may end in any thread.
        """
        n = math.prod(shape) * dtype.itemsize
        size = 1 << max(n - 1, 4095).bit_length()
        free = self._free.setdefault(size, [])
        try:
            buffer, start = free.pop()
        except IndexError:
            if self._n_bytes + size > _MOST_PINNED:
                self._free_unused()  # of other sizes
            if self._n_bytes + size > _MOST_PINNED:
                return None
            buffer = lib().ggml_backend_buft_alloc_buffer(self._buffer_type, size)
            if buffer == ffi.NULL:
                return None
            self._n_bytes += size
            start = int(ffi.cast("uintptr_t", lib().ggml_backend_buffer_get_base(buffer)))
        memory = _Pinned(self, buffer, start, size)
        memory.__array_interface__ = {"data": (start, False), "shape": shape, "typestr": dtype.str, "version": 3}
        return np.asarray(memory)

    def give_back(self, buffer: Any, start: int, size: int) -> None:
        """Take a buffer that no array uses."""
        self._free[size].append((buffer, start))  # before the test: close() may run in another thread
        if self._closed:
            self._free_unused()

    def close(self) -> None:
        """Free what no array uses; the rest is freed with its array."""
        self._closed = True
        self._free_unused()

    def _free_unused(self) -> None:
        if self._process != os.getpid():
            return  # a forked process has no connection to the driver
        for size, buffers in list(self._free.items()):
            with suppress(IndexError):  # another thread may take the last one
                while True:
                    lib().ggml_backend_buffer_free(buffers.pop()[0])
                    self._n_bytes -= size


class _Pinned:
    """The memory of one array. NumPy refers to it as long as an array uses it."""

    def __init__(self, pool: PinnedPool, buffer: Any, start: int, size: int) -> None:
        self._pool, self._buffer, self._start, self._size = pool, buffer, start, size
        self.__array_interface__: dict[str, Any] = {}

    def __del__(self) -> None:
        self._pool.give_back(self._buffer, self._start, self._size)
