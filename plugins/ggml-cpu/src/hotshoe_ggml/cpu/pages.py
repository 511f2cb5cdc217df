"""Large pages for packed weights: at once where they come quickly, the others while the model is at work already."""

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

from hotshoe_ggml.transfer import address, start_threads

__all__ = ["FreshPages", "enlarge_pages"]

_LARGE = 2 << 20
_LEAST = 16 << 20  # bytes that are worth a thread
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14: pages before they are written
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1: pages that are in use become a large one, now
_LATER = 1.0  # seconds: the first token goes first
_QUICK = 1e-3  # seconds for a page, of which 0.2 clear or copy it; as many small pages take as long
_REST = 1, 20  # times as long is waited after one that came quickly, and after one that did not
_PASSED = 8  # pages that are not asked for after the first that was slow; twice as many after each other


class FreshPages:
    """Gives memory its pages before it is written, large ones of 2 MiB as long as those come quickly.

    Linux gives many small pages at once in two thirds of the time that it takes for them one by one, as they are
    written. Large ones take a third of it where it has them at hand; where it must make room for one, or a host must
    give it first, five times as long: after such a one the next 8 are left out, then 16, 32 and so on.
    ``enlarge_pages`` sees to those later.
    """

    def __init__(self, memory: np.ndarray[Any, Any]) -> None:
        self._start = address(memory)
        self._stop = self._start + memory.nbytes
        self._advise = _advise() if memory.nbytes >= _LEAST and sys.platform == "linux" else None
        self._left_out = 0
        self._next_left_out = _PASSED

    def take(self, start: int, stop: int) -> None:
        """For the bytes from ``start`` to ``stop``, which nobody has written; threads may, each for its own."""
        advise = self._advise
        if advise is None:
            return
        first = -(-(self._start + start) // _LARGE) * _LARGE  # who writes the start of one takes it whole
        for page in range(first, self._start + stop, _LARGE):
            nbytes = min(_LARGE, self._stop - page)
            large = nbytes == _LARGE and not self._left_out
            before = time.perf_counter()
            if large:
                advise(page, nbytes, mmap.MADV_HUGEPAGE)
            else:
                self._left_out = max(0, self._left_out - 1)
            if advise(page, nbytes, _POPULATE_WRITE) == errno.EINVAL:  # an older kernel
                self._advise = None
                return
            if large and time.perf_counter() - before > _QUICK:
                self._left_out = self._next_left_out
                self._next_left_out *= 2


def enlarge_pages(memory: np.ndarray[Any, Any]) -> threading.Thread | None:
    """Have Linux put pages of 2 MiB in the place of those that ``memory`` is in; the thread that does, if one does.

    A token reads all weights once. Of pages of 4 KiB each must be looked up, in a virtual machine in two tables, and
    the processor's own reading ahead ends with each: benchmarks/NOTES.md has what that costs. To ask for all of them
    beforehand makes loading wait where memory is in pieces, or a host has yet to give it; so those that ``FreshPages``
    did not get come later, and take a twentieth of a core where they do not come quickly.

    Memory that is freed meanwhile is let go. Where Linux has no such pages to give, nothing changes.
    """
    if memory.nbytes < _LEAST or sys.platform != "linux":
        return None
    started = start_threads(1, functools.partial(_enlarge, weakref.ref(memory)))
    return started[0] if started else None


def _enlarge(memory: weakref.ref[np.ndarray[Any, Any]]) -> None:
    advise = _advise()
    time.sleep(_LATER)
    done = 0
    while (held := memory()) is not None:
        start = address(held)
        at = -(-start // _LARGE) * _LARGE + done
        if at + _LARGE > start + held.nbytes:
            return
        before = time.perf_counter()
        if advise(at, _LARGE, _COLLAPSE) == errno.EINVAL:  # an older kernel, or forbidden
            advise(at, (start + held.nbytes - at) // _LARGE * _LARGE, mmap.MADV_HUGEPAGE)  # by and by, then
            return
        took = time.perf_counter() - before
        done += _LARGE
        del held  # whoever frees the memory waits for one page at most
        time.sleep(took * _REST[took > _QUICK])


def _advise() -> Callable[[int, int, int], int]:
    """``madvise``, which returns what went wrong. mmap's own would hold Python's lock."""
    import ctypes  # 2 ms

    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def advise(start: int, nbytes: int, advice: int) -> int:
        return ctypes.get_errno() if madvise(start, nbytes, advice) else 0

    return advise
