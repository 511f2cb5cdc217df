"""Moving bytes from a mapped file into a device's memory, and the pages that they leave behind."""

from __future__ import annotations

import contextlib
import functools
import mmap
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Progress
from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import address

__all__ = [
    "Meter",
    "ReadAhead",
    "copy_all",
    "drop_pages",
    "memory_owner",
    "run_all",
    "start_threads",
    "zeros",
]

_CHUNK = 64 << 20  # bytes copied between two progress reports
_AHEAD = 256 << 20  # bytes whose pages are touched in one call
_GAP = 1 << 20  # gaps of fewer bytes, such as norms, are touched too


def memory_owner(data: Any) -> Any:
    """The object that owns an array's memory."""
    while isinstance(data, np.ndarray):
        data = data.base
    return data.obj if isinstance(data, memoryview) else data


def start_threads(n: int, target: Callable[[], object]) -> list[threading.Thread]:
    """Start ``n`` threads, or as many as the system allows (possibly none)."""
    started: list[threading.Thread] = []
    with contextlib.suppress(RuntimeError):
        for _ in range(n):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            started.append(thread)
    return started


class ReadAhead:
    """Touches pages of mapped weights in the background while the rest of a model is built.

    The first token would wait for them otherwise.
    """

    def __init__(self, mapped: np.ndarray[Any, Any], weights: list[np.ndarray[Any, Any]]) -> None:
        spans: list[list[int]] = []
        for data in sorted(weights, key=address):
            start = address(data) - address(mapped)
            if not spans or start > spans[-1][1] + _GAP:
                spans.append([start, start])
            spans[-1][1] = start + data.nbytes
        self._runs = [mapped[start:stop] for start, stop in spans]
        self._stopped = False
        self._threads = start_threads(1, self._run)

    def _run(self) -> None:
        # few, large calls: each releases Python's lock and waits for it again afterwards
        for run in self._runs:
            for start in range(0, run.size, _AHEAD):
                if self._stopped:
                    return
                np.bitwise_or.reduce(run[start : start + _AHEAD : mmap.PAGESIZE])

    def stop(self) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()
        self._runs.clear()


class Meter:
    """Reports the progress of loading to a callback.

    Calls it only in the thread that made the Meter. Only ``finish`` reports 1.0.
    """

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = max(total, 1)
        self.done = 0
        self.progress = progress
        self._thread = threading.get_ident()
        self._lock = threading.Lock()

    def add(self, n: int) -> None:
        with self._lock:
            self.done += n
            done = self.done
        # ``done`` may pass ``total``: a weight in two layouts is read twice
        if self.progress is not None and done < self.total and threading.get_ident() == self._thread:
            self.progress(done / self.total)

    def finish(self) -> None:
        """Report 1.0."""
        if self.progress is not None:
            self.progress(1.0)


def copy_all(pairs: list[tuple[Any, np.ndarray[Any, Any]]], meter: Meter, n_threads: int, whole: bool) -> None:
    """Copy arrays into tensors, several at a time: rearranging them is work for all cores.

    whole: the layout needs each tensor in one piece.
    """

    def copy(tensor: Any, data: np.ndarray[Any, Any]) -> None:
        _copy(tensor, data, meter, whole=whole)
        drop_pages(data)

    run_all([functools.partial(copy, *pair) for pair in pairs], n_threads)


def run_all(jobs: Sequence[Callable[[], object]], n_threads: int) -> None:
    """Run the jobs in their order, ``n_threads`` at a time.

    If a job raises, no further job starts. Raises its exception after the running jobs are finished.
    """
    waiting = iter(jobs)
    failed: list[BaseException] = []
    lock = threading.Lock()

    def work() -> None:
        try:
            while not failed:
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                job()
        except BaseException as error:
            failed.append(error)

    helpers = start_threads(min(n_threads, len(jobs)) - 1, work)
    work()
    for helper in helpers:
        helper.join()
    if failed:
        raise failed[0]


def _copy(tensor: Any, data: np.ndarray[Any, Any], meter: Meter, *, whole: bool) -> None:
    step = data.nbytes if whole else _CHUNK
    for start in range(0, data.nbytes, max(step, 1)):
        piece = data[start : start + step]
        lib().ggml_backend_tensor_set(tensor, ffi.from_buffer(piece), start, piece.nbytes)
        meter.add(piece.nbytes)


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
    """Let go of the pages of a mapped file after they were copied. The system reads them again when needed."""
    root = memory_owner(data)
    if sys.platform == "win32" or not isinstance(root, mmap.mmap):
        return
    offset = address(data) - address(np.frombuffer(root, np.uint8))
    start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (offset + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < stop:
        root.madvise(mmap.MADV_DONTNEED, start, stop - start)
