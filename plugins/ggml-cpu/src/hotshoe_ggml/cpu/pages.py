"""Large pages for packed weights, made while the model is at work already."""

from __future__ import annotations

import errno
import functools
import mmap
import sys
import threading
import time
import weakref
from typing import Any

import numpy as np

from hotshoe_ggml.transfer import address, start_threads

__all__ = ["enlarge_pages"]

_LARGE = 2 << 20
_LEAST = 16 << 20  # bytes that are worth a thread
_COLLAPSE = 25  # MADV_COLLAPSE of Linux 6.1: pages that are in use become a large one, now
_LATER = 1.0  # seconds: the first token goes first
_QUICK = 1e-3  # seconds for a page, of which 0.2 copy it
_REST = 1, 20  # times as long is waited after one that came quickly, and after one that did not


def enlarge_pages(memory: np.ndarray[Any, Any]) -> threading.Thread | None:
    """Have Linux put pages of 2 MiB in the place of those that ``memory`` is in; the thread that does, if one does.

    A token reads all weights once. Of pages of 4 KiB each must be looked up, in a virtual machine in two tables, and
    the processor's own reading ahead ends with each: docs/performance.md has what that costs. To ask for large ones
    beforehand makes loading wait for them where memory is in pieces, or a host has yet to give it; so they come
    later, and take a twentieth of a core where they do not come quickly.

    Memory that is freed meanwhile is let go. Where Linux has no such pages to give, nothing changes.
    """
    if memory.nbytes < _LEAST or sys.platform != "linux":
        return None
    started = start_threads(1, functools.partial(_enlarge, weakref.ref(memory)))
    return started[0] if started else None


def _enlarge(memory: weakref.ref[np.ndarray[Any, Any]]) -> None:
    import ctypes

    madvise = ctypes.CDLL(None, use_errno=True).madvise  # mmap's own would hold Python's lock
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    time.sleep(_LATER)
    done = 0
    while (held := memory()) is not None:
        start = address(held)
        at = -(-start // _LARGE) * _LARGE + done
        if at + _LARGE > start + held.nbytes:
            return
        before = time.perf_counter()
        if madvise(at, _LARGE, _COLLAPSE) and ctypes.get_errno() == errno.EINVAL:  # an older kernel, or forbidden
            madvise(at, (start + held.nbytes - at) // _LARGE * _LARGE, mmap.MADV_HUGEPAGE)  # by and by, then
            return
        took = time.perf_counter() - before
        done += _LARGE
        del held  # whoever frees the memory waits for one page at most
        time.sleep(took * _REST[took > _QUICK])
