"""Large pages for packed weights: at once if Linux provides them quickly, otherwise in the background."""

from __future__ import annotations

import errno
import functools
import mmap
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from hotshoe_ggml.native.context import address
from hotshoe_ggml.parallel import start_threads

__all__ = ["FreshPages", "enlarge_pages"]

_LARGE = 2 << 20
_MIN_SIZE = 16 << 20  # bytes; less memory is not worth a thread
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14: provide pages before they are written
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1: move pages in use to a large one, now
_DELAY = 1.0  # seconds before the first page, so that the first token goes first
_FAST = 1e-3  # seconds for a page, including 0.2e-3 to clear or copy it; as many small pages take as long
_PAUSE_AFTER_FAST = 1  # × the time that the last page took
_PAUSE_AFTER_SLOW, _PAUSE_LATER = 20, 3  # at first, so that a short run loses no speed; and after _SHORT seconds
_SHORT = 4.0
_SKIPPED = 8  # pages after the first slow one; twice as many after each further one


class FreshPages:
    """Requests memory's pages before it is written, large pages of 2 MiB as long as Linux provides them quickly.

    Linux provides many small pages at once in two thirds of the time that it needs for them one by one, as they are
    written. Large pages take a third of that time if they are free. If Linux must make room for one, or a host must
    provide it first, they take five times as long: after such a page the next 8 are small, then 16, 32 and so on.
    ``enlarge_pages`` replaces those later.
    """

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self._start = address(memory)
        self._stop = self._start + memory.nbytes
        self._advise = _advise() if memory.nbytes >= _MIN_SIZE and sys.platform == "linux" else None
        self._n_to_skip = 0
        self._next_skip = _SKIPPED

    def request(self, start: int, stop: int) -> None:
        """Request the pages of the bytes from ``start`` to ``stop``, before they are written. Threads may call this."""
        advise = self._advise
        if advise is None:
            return
        # the thread that writes the first byte of a page requests it
        first = -(-(self._start + start) // _LARGE) * _LARGE
        for page in range(first, self._start + stop, _LARGE):
            nbytes = min(_LARGE, self._stop - page)
            large = nbytes == _LARGE and not self._n_to_skip
            before = time.perf_counter()
            if large:
                advise(page, nbytes, mmap.MADV_HUGEPAGE)
            else:
                self._n_to_skip = max(0, self._n_to_skip - 1)
            if advise(page, nbytes, _POPULATE_WRITE) == errno.EINVAL:  # an older kernel
                self._advise = None
                return
            if large and time.perf_counter() - before > _FAST:
                self._n_to_skip = self._next_skip
                self._next_skip *= 2


def enlarge_pages(memory: np.ndarray[Any, Any]) -> threading.Thread | None:
    """Move ``memory`` to pages of 2 MiB in the background. Returns the thread, or None where unsupported.

    A token reads all weights once. The processor must look up each page of 4 KiB, in a virtual machine in two tables,
    and its prefetching stops at the end of each: benchmarks/NOTES.md says what that costs. Requesting all large pages
    in advance would delay loading if memory is fragmented, or if a host must provide it first. So this thread gets the
    large pages that ``FreshPages`` did not get. While they are slow it takes a twentieth of a core, and after four
    seconds a quarter: a process that computes for so long gains more than that costs.

    The thread does not keep the memory alive. If Linux has no large pages, nothing changes.
    """
    if memory.nbytes < _MIN_SIZE or sys.platform != "linux":
        return None
    started = start_threads(1, functools.partial(_enlarge, weakref.ref(memory)))
    return started[0] if started else None


def _enlarge(memory: weakref.ref[np.ndarray[Any, Any]]) -> None:
    advise = _advise()
    time.sleep(_DELAY)
    begin = time.perf_counter()
    done = 0
    while (array := memory()) is not None:
        start = address(array)
        page = -(-start // _LARGE) * _LARGE + done
        if page + _LARGE > start + array.nbytes:
            return
        before = time.perf_counter()
        if advise(page, _LARGE, _COLLAPSE) == errno.EINVAL:  # an older kernel, or forbidden
            # Linux may then merge the pages later
            advise(page, (start + array.nbytes - page) // _LARGE * _LARGE, mmap.MADV_HUGEPAGE)
            return
        now = time.perf_counter()
        done += _LARGE
        del array  # the memory can be freed during the pause
        after_slow = _PAUSE_AFTER_SLOW if now - begin < _SHORT else _PAUSE_LATER
        time.sleep((now - before) * (after_slow if now - before > _FAST else _PAUSE_AFTER_FAST))


def _advise() -> Callable[[int, int, int], int]:
    """``madvise`` of the C library; returns errno, or 0. mmap's method would hold Python's lock."""
    import ctypes  # 2 ms

    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def advise(start: int, nbytes: int, advice: int) -> int:
        return ctypes.get_errno() if madvise(start, nbytes, advice) else 0

    return advise
