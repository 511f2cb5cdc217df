"""Copying weights into a device's memory, and reading ahead in mapped files."""

from __future__ import annotations

import functools
import mmap
import threading
from typing import Any

import numpy as np

from hotshoe_core.contract.backend import Progress
from hotshoe_ggml.memory.host import drop_pages
from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import address
from hotshoe_ggml.parallel import run_all, start_threads

__all__ = ["Meter", "ReadAhead", "copy_all"]

_CHUNK = 64 << 20  # bytes copied between two progress reports
_AHEAD = 256 << 20  # bytes whose pages are touched in one call
_GAP = 1 << 20  # gaps of fewer bytes, such as norms, are touched too


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
    """Copy arrays into tensors, ``n_threads`` at a time, because rearranging them keeps several cores busy.

    whole: the layout needs each tensor in one piece.
    """

    def copy(tensor: Any, data: np.ndarray[Any, Any]) -> None:
        _copy(tensor, data, meter, whole=whole)
        drop_pages(data)

    run_all([functools.partial(copy, *pair) for pair in pairs], n_threads)


def _copy(tensor: Any, data: np.ndarray[Any, Any], meter: Meter, *, whole: bool) -> None:
    step = data.nbytes if whole else _CHUNK
    for start in range(0, data.nbytes, max(step, 1)):
        piece = data[start : start + step]
        lib().ggml_backend_tensor_set(tensor, ffi.from_buffer(piece), start, piece.nbytes)
        meter.add(piece.nbytes)
