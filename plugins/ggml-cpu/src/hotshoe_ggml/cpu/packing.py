"""Packing: packs the weights of a model, at once or while the program goes on."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

from hotshoe_ggml.cpu.packed import ALIGNMENT, PackedWeight
from hotshoe_ggml.cpu.pages import LargePages
from hotshoe_ggml.memory.host import zeros
from hotshoe_ggml.memory.transfer import Meter
from hotshoe_ggml.native import ffi, kernels
from hotshoe_ggml.native.context import OutOfMemory
from hotshoe_ggml.parallel import start_threads

__all__ = ["Packing"]

_AT_ONCE = 16  # parts, of some MiB, between two reports of progress


class Packing:
    """Packs weights into one piece of memory, several parts at a time.

    A weight that ``reads_file`` can be multiplied before it is packed. So the first step of a model need not wait: it
    pauses the threads that pack, because they would take its processors. Packing takes longer than such a step, as it
    needs new pages, and makes all later steps faster.

    n_threads: how many pack at a time. meter: of the bytes that were read. Raises OutOfMemory.
    """

    def __init__(self, weights: Sequence[PackedWeight], n_threads: int, meter: Meter | None = None) -> None:
        # Experts go last: a token reads a few of them, so that a large page saves little time. The smallest go first: a
        # step reads a weight that is half packed from the file, and then both are in memory.
        self._weights = sorted(weights, key=lambda w: (w.n_experts > 0, w.nbytes))
        sizes = [-(-packed.nbytes // ALIGNMENT) * ALIGNMENT for packed in self._weights]
        starts = list(itertools.accumulate(sizes, initial=0))
        try:
            self._memory = zeros(starts[-1])
        except MemoryError:
            raise OutOfMemory(starts[-1]) from None
        self._pages = LargePages(self._memory, sum(size for w, size in zip(self._weights, sizes) if not w.n_experts))
        self._jobs = ffi.new("struct hotshoe_pack_job[]", len(self._weights))
        n_parts = 0
        for packed, start, job in zip(self._weights, starts, self._jobs):
            packed.use_memory(self._memory[start : start + packed.nbytes])
            packed.describe(job)
            job.first_part, job.n_left = n_parts, job.n_matrices * -(-job.m // job.rows_at_once)
            n_parts += job.n_left
        state = {"jobs": self._jobs, "pages": self._pages.native, "n_jobs": len(self._weights), "n_parts": n_parts}
        self._state = ffi.new("struct hotshoe_packing *", state)
        self._n_threads = n_threads
        self._meter = meter
        self._helpers: list[threading.Thread] = []
        self._turn = threading.Condition()
        self._n_busy = 0  # threads that pack right now
        self._is_stopped = False

    def start(self) -> None:
        """Start to pack, with one thread fewer than ``n_threads``: the program goes on in one."""
        self._helpers = start_threads(self._n_threads - 1, self._help)

    def pause(self) -> None:
        """Return when no thread packs. Products read what is packed by then, and the rest from the file."""
        with self._turn:
            self._state.is_paused = True
            self._turn.wait_for(lambda: self._n_busy == 0)
        self._release_files()

    def resume(self) -> None:
        """Let the threads go on after ``pause``."""
        with self._turn:
            self._state.is_paused = False
            self._turn.notify_all()

    def finish(self) -> None:
        """Pack all that is not packed yet.

        It can be called again after a KeyboardInterrupt.
        """
        self.resume()
        if not self._helpers:
            self.start()
        while n_read := kernels().hotshoe_pack(self._state, _AT_ONCE):
            if self._meter is not None:
                self._meter.add(n_read)
        self._join()
        self._release_files()
        self._pages.get_rest()

    def stop(self) -> None:
        """Leave the rest of the weights unpacked, for good."""
        with self._turn:
            self._is_stopped = self._state.is_paused = True
            self._turn.notify_all()
        self._join()

    def _join(self) -> None:
        for helper in self._helpers:
            helper.join()

    def _help(self) -> None:
        """Pack until nothing is left. While packing is paused, wait."""
        while self._state.next_part < self._state.n_parts:
            with self._turn:
                self._turn.wait_for(lambda: self._is_stopped or not self._state.is_paused)
                if self._is_stopped:
                    return
                self._n_busy += 1
            try:
                kernels().hotshoe_pack(self._state, self._state.n_parts)
            finally:
                with self._turn:
                    self._n_busy -= 1
                    self._turn.notify_all()

    def _release_files(self) -> None:
        for packed, job in zip(self._weights, self._jobs):
            if not job.n_left:
                packed.finish()
