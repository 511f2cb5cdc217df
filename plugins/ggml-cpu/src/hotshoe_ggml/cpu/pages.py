"""Large pages for packed weights: at once if Linux provides them quickly, otherwise in the background."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hotshoe_ggml.native import ffi, kernels
from hotshoe_ggml.native.context import address
from hotshoe_ggml.parallel import start_threads

__all__ = ["LargePages"]

_LARGE = 2 << 20
_PIECE = 64 << 20  # bytes whose addresses are reserved at once
_MIN_SIZE = 16 << 20  # bytes; less memory is not worth a thread
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14
_MOVE = 1 | 2 | 4  # MREMAP_MAYMOVE, MREMAP_FIXED, and MREMAP_DONTUNMAP of Linux 5.7
_DELAY = 1.0  # seconds before the first page, so that the first token goes first
_FAST = 1e-3  # seconds for a page, including 0.2e-3 to clear or copy it; as many small pages take as long
_PAUSE = 0.25  # × the time that the last page took
_FAILED = 2**64 - 1  # MAP_FAILED
_SKIPPED = 8  # pages after the first slow one; twice as many after each further one


class LargePages:
    """Gets memory's pages: large ones of 2 MiB as long as Linux provides them quickly, and later the rest of them.

    A token reads nearly all weights once. The processor must look up each page of 4 KiB, in a virtual machine in two
    tables, and its prefetching stops at the end of each: benchmarks/NOTES.md says what that costs.

    ``hotshoe_request_pages`` requests them: it takes ``native``, and its comment says which pages become large.

    n_hot: bytes at the start that are worth a large page even if it is slow.
    """

    def __init__(self, memory: np.ndarray[Any, Any], n_hot: int) -> None:
        self._memory = weakref.ref(memory)
        self._start = address(memory)
        self._stop = self._start + memory.nbytes
        self._hot = self._start + n_hot
        is_on = memory.nbytes >= _MIN_SIZE and sys.platform == "linux"
        self._is_large = np.zeros(memory.nbytes // _LARGE + 1, np.uint8)  # of each page
        start, stop = (ffi.cast("void *", at) for at in (self._start, self._stop))
        is_large = ffi.from_buffer("uint8_t[]", self._is_large)
        self.native = ffi.new(
            "struct hotshoe_pages *",
            (start, stop, is_large, int(_FAST * 1e9), is_on, 0, _SKIPPED),
        )

    def get_rest(self) -> threading.Thread | None:
        """Move the bytes that are written by now to large pages, in the background, where they are not in large ones.

        Returns the thread, or None where that is not supported. Nobody may write the memory any more. The thread does
        not keep it alive, and computes only when no other thread wants the processor, or nearly so.
        """
        if not self.native.is_on or mmap.PAGESIZE != 4096:  # on some ARM systems large pages have other sizes
            return None
        if not _SETTING.exists() or "[madvise]" not in _SETTING.read_text():  # never, or Linux does it by itself
            return None
        started = start_threads(1, self._get_rest)
        return started[0] if started else None

    def _get_rest(self) -> None:
        time.sleep(_DELAY)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # on Linux, of the thread alone
        self.native.n_to_skip, self.native.next_skip = 0, _SKIPPED
        skips, first = kernels().hotshoe_skips_page, -(-self._start // _LARGE) * _LARGE
        for start in range(first, self._stop - _LARGE + 1, _PIECE):
            pages = range(start, min(start + _PIECE, self._stop - _LARGE + 1), _LARGE)
            with _reserved(len(pages) * _LARGE) as room:
                for page, fresh in zip(pages, range(room, room + _PIECE, _LARGE)):
                    if self._is_large[(page - first) // _LARGE] or (page >= self._hot and skips(self.native)):
                        continue
                    memory = self._memory()
                    before = time.thread_time()
                    if not room or memory is None or not self._replace(page, fresh):
                        return
                    del memory  # it can be freed during the pause
                    seconds = time.thread_time() - before
                    if page >= self._hot:
                        kernels().hotshoe_page_took(self.native, int(seconds * 1e9))
                    time.sleep(seconds * _PAUSE)

    def _replace(self, page: int, fresh: int) -> bool:
        """Copy the page to a large one at ``fresh``, and give that the address of the old one.

        Linux has a call for all of this, MADV_COLLAPSE. But a thread that reads the page must then wait for the whole
        time. With mremap, it waits for a few microseconds.
        """
        if _advise()(fresh, _LARGE, _POPULATE_WRITE):
            return False
        ctypes, libc = _libc()
        ctypes.memmove(fresh, page, _LARGE)
        # the addresses at `fresh` stay reserved: another thread could get them, and `_reserved` would free its memory
        moved: int = libc.mremap(fresh, _LARGE, _LARGE, _MOVE, page)
        return moved == page


@contextlib.contextmanager
def _reserved(nbytes: int) -> Iterator[int]:
    """Addresses for so many bytes in large pages, which Linux provides later; 0 if it refuses."""
    _, libc = _libc()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    start = libc.mmap(None, nbytes + _LARGE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if start == _FAILED:
        yield 0
        return
    try:
        first = -(-start // _LARGE) * _LARGE
        _advise()(first, nbytes, mmap.MADV_HUGEPAGE)
        yield first
    finally:
        libc.munmap(start, nbytes + _LARGE)


@functools.cache
def _libc() -> tuple[Any, Any]:
    """``ctypes`` and the C library, whose calls do not hold Python's lock."""
    import ctypes  # 2 ms

    libc = ctypes.CDLL(None, use_errno=True)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.madvise.argtypes = (pointer, size, number)
    libc.munmap.argtypes = (pointer, size)
    libc.mmap.restype, libc.mmap.argtypes = pointer, (pointer, size, number, number, number, ctypes.c_long)
    libc.mremap.restype, libc.mremap.argtypes = pointer, (pointer, size, size, number, pointer)
    return ctypes, libc


def _advise() -> Callable[[int, int, int], int]:
    """``madvise`` of the C library; returns errno, or 0."""
    ctypes, libc = _libc()

    def advise(start: int, nbytes: int, advice: int) -> int:
        return ctypes.get_errno() if libc.madvise(start, nbytes, advice) else 0

    return advise
