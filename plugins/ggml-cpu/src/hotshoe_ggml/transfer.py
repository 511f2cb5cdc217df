"""Bytes on their way: from a mapped file into a device's memory, and the pages they leave behind."""

from __future__ import annotations

import contextlib
import functools
import mmap
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Progress
from hotshoe_ggml._native import ffi, lib

__all__ = [
    "Meter",
    "ReadAhead",
    "address",
    "copy_all",
    "drop_pages",
    "memory_owner",
    "run_all",
    "start_threads",
    "zeros",
]

_CHUNK = 64 << 20  # bytes copied between two reports of progress
_AHEAD = 256 << 20  # bytes whose pages are touched in one call
_GAP = 1 << 20  # bytes between two weights, as of norms, that are touched too


def address(data: np.ndarray[Any, Any]) -> int:
    return int(data.__array_interface__["data"][0])


def memory_owner(data: Any) -> Any:
    """The object whose memory an array is of."""
    while isinstance(data, np.ndarray):
        data = data.base
    return data.obj if isinstance(data, memoryview) else data


def start_threads(n: int, target: Callable[[], object]) -> list[threading.Thread]:
    """Up to ``n`` threads; fewer, and be it none, where the system starts no more."""
    started: list[threading.Thread] = []
    with contextlib.suppress(RuntimeError):
        for _ in range(n):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            started.append(thread)
    return started


class ReadAhead:
    """Touches pages of mapped weights while the rest of a model is made, which the first token would wait for."""

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
        """In few calls: each releases Python's lock, and must have it for the next."""
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
    """Tells the caller how far it is, in the caller's own thread only. Only ``finish`` says 1.0."""

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
        # a weight in two layouts is read twice
        if self.progress is not None and done < self.total and threading.get_ident() == self._thread:
            self.progress(done / self.total)

    def finish(self) -> None:
        """Whichever thread came last."""
        if self.progress is not None:
            self.progress(1.0)


def copy_all(pairs: list[tuple[Any, np.ndarray[Any, Any]]], meter: Meter, n_threads: int, whole: bool) -> None:
    """Into the device's memory, several tensors at a time: rearranging them is work for all cores."""

    def copy(tensor: Any, data: np.ndarray[Any, Any]) -> None:
        _copy(tensor, data, meter, whole=whole)
        drop_pages(data)

    run_all([functools.partial(copy, *pair) for pair in pairs], n_threads)


def run_all(jobs: Sequence[Callable[[], object]], n_threads: int) -> None:
    """In their order, as many at a time as there are threads. Where one fails the others that run are waited for."""
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
    """In pieces; a layout that is rearranged on the way takes a tensor whole."""
    step = data.nbytes if whole else _CHUNK
    for start in range(0, data.nbytes, max(step, 1)):
        piece = data[start : start + step]
        lib().ggml_backend_tensor_set(tensor, ffi.from_buffer(piece), start, piece.nbytes)
        meter.add(piece.nbytes)


def zeros(nbytes: int) -> np.ndarray[Any, Any]:
    """Memory from the start of a page, whose pages are taken when they are written. Raises MemoryError."""
    if not nbytes:
        return np.zeros(0, np.uint8)
    # by itself: calloc clears what it has had before, and NumPy asks for huge pages, which the kernel may have to make
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}  # not Windows
    try:
        return np.frombuffer(mmap.mmap(-1, nbytes, **private), np.uint8)
    except OSError as e:
        raise MemoryError(str(e)) from None


def drop_pages(data: np.ndarray[Any, Any]) -> None:
    """Once copied, the pages of a mapped file need not stay in memory beside the copy. They can come again."""
    root = memory_owner(data)
    if not isinstance(root, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    offset = address(data) - address(np.frombuffer(root, np.uint8))
    start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (offset + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < stop:
        root.madvise(mmap.MADV_DONTNEED, start, stop - start)
