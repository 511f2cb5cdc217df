"""Memory of the host: zeroed pages, and the pages of mapped files."""

from __future__ import annotations

import mmap
import sys
from typing import Any

import numpy as np

from hotshoe_ggml.native.context import address

__all__ = ["drop_pages", "memory_owner", "zeros"]


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
