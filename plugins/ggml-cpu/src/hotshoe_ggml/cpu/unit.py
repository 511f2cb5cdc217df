"""The CPU as a unit: its pool of threads, packed weights and hotshoe's kernels."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.contract.device import BackendParams, Device
from hotshoe_core.errors import NativeError
from hotshoe_core.errors.text import format_bytes
from hotshoe_core.graphs.graph import Graph
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml.cpu.bf16 import multiplies_bf16, which_hold_bf16
from hotshoe_ggml.cpu.builder import CpuBuilder, cache_types
from hotshoe_ggml.cpu.packed import DenseWeight, PackedFormat, PackedWeight, QuantizedWeight, pack_format
from hotshoe_ggml.cpu.packing import Packing
from hotshoe_ggml.cpu.prefetching import force_prefetching, prefetching
from hotshoe_ggml.cpu.threads import require_threads
from hotshoe_ggml.memory.host import zeros
from hotshoe_ggml.memory.transfer import Meter
from hotshoe_ggml.native import ffi, kernels, lib
from hotshoe_ggml.parallel import run_all
from hotshoe_ggml.precision import CONVOLUTIONS
from hotshoe_ggml.unit import Unit

__all__ = ["CpuUnit"]

_MIN_LATER = 16 << 20  # bytes; fewer are packed at once
_MAX_ROWS_BEFORE = 128  # of a step before weights are packed: each 128 rows, or fewer, read the file once more


class CpuUnit(Unit):
    """The CPU with hotshoe's kernels."""

    runs_custom_kernels = True
    can_pack = True

    def __init__(self, device: Device, params: BackendParams, n_threads: int) -> None:
        force_prefetching()
        super().__init__(device, params, n_threads)
        self.n_copying = n_threads
        self.may_round_to_bf16 = multiplies_bf16()
        self.reads_lists = params.flash_attention == "auto" and DType.F16.id in cache_types()
        self._bf16 = params.matmul_precision == "bf16"
        self._f32 = params.matmul_precision == "f32"
        self._n_f16 = self._n_as_bf16 = 0  # packed F16 weights that were checked, and those that are multiplied as BF16
        self._pool: Any = ffi.NULL
        self._packing: Packing | None = None  # what still runs
        self._may_wait = False  # whether it may wait for a step
        require_threads(self.name, n_threads - 1)
        self._scratch = self._allocate_scratch()
        self._start_pool()

    def _allocate_scratch(self) -> Any:
        size = self.n_threads * kernels().HOTSHOE_SCRATCH
        try:
            return ffi.from_buffer(zeros(size))
        except MemoryError:
            raise NativeError(
                f"{self.name}: the system gives no {format_bytes(size)} for the kernels of {self.n_threads} threads",
                hint="fewer threads: n_threads=, or a higher limit: see `ulimit -v`",
            ) from None

    def _start_pool(self) -> None:
        """Start threads that stay: without a pool ggml starts and ends them with every graph."""
        params = ffi.new("struct ggml_threadpool_params *")
        lib().ggml_threadpool_params_init(params, self.n_threads)
        params.poll = 1  # of 100: threads look for more work for about 50 ms, the time between two steps, not for 3 s
        self._pool = self.library.handle.ggml_threadpool_new(params)
        self.library.handle.ggml_backend_cpu_set_threadpool(self.ggml_backend, self._pool)

    def builder(self, context: Any, keep_alive: list[Any]) -> CpuBuilder:
        return CpuBuilder(
            context,
            keep_alive,
            flash=self.params.flash_attention,
            n_threads=self.n_threads,
            scratch=self._scratch,
        )

    def work_size(self, cgraph: Any) -> int:
        return int(self.library.handle.ggml_graph_plan(cgraph, self.n_threads, self._pool).work_size)

    def buffer_types(self) -> list[Any]:
        return self.library.extra_buffer_types(self.device_pointer)

    def rounds(self, weight: WeightData) -> bool:
        if not self._bf16 or self.params.repack is not True:
            return False
        product = _as_product(weight)
        return pack_format(product, bf16=True) is not pack_format(product)

    def multiplies_in_f32(self, weight: WeightData) -> bool:
        if weight.dtype is DType.F32 or (weight.dtype is not DType.F16 and set(weight.uses) <= set(CONVOLUTIONS)):
            return True  # ggml's convolutions widen other kernels than those of F16 first
        return self.params.repack is True and isinstance(pack_format(_as_product(weight)), PackedFormat)

    def packs(self, weight: WeightData) -> bool:
        return pack_format(weight, bf16=self._bf16) is not None

    def is_batch_invariant(self, weight: WeightData) -> bool:
        # ggml's products with one matrix may add up one row in another order than several. Those with experts compute
        # each row by itself, and those with a matrix of each head always get two rows or more: see CpuBuilder._by_head.
        return len(weight.shape) != 2 or "linear" not in weight.uses or self.packs(_as_product(weight))

    def pack(self, weights: Sequence[WeightData], *, dry: bool, meter: Meter) -> list[PackedWeight]:
        packed = [self._packed(w) for w in weights]
        if dry:
            meter.add(sum(w.data.nbytes for w in weights))
            return packed
        self._finish_packing()
        later = [p for p in packed if p.reads_file()] if self.params.mmap else []
        if sum(p.nbytes for p in later) < _MIN_LATER:
            later = []
        checked = [p for p in packed if isinstance(p, DenseWeight) and p.may_become_bf16()]
        on_disk = [p for p in checked if p not in later and p.is_on_disk()]
        _find_bf16([p for p in checked if p not in on_disk], self.n_copying)
        Packing([p for p in packed if p not in later and p not in on_disk], self.n_copying, meter).finish()
        on_disk.sort(key=lambda p: -p.nbytes)
        run_all([functools.partial(_check_and_pack, p, meter) for p in on_disk], self.n_copying)
        self._n_f16 += len(checked)
        self._n_as_bf16 += sum(p.format is PackedFormat.BF16 for p in checked)
        if later:
            self._packing, self._may_wait = Packing(later, self.n_copying), True
            self._packing.start()
        return packed

    def _packed(self, weight: WeightData) -> PackedWeight:
        format = pack_format(weight, bf16=self._bf16)
        if isinstance(format, PackedFormat):
            return DenseWeight(weight, format, in_f32=self._f32)
        return QuantizedWeight(weight)

    def begin_step(self, graph: Graph, *, alone: bool) -> None:
        if self._packing is None:
            return
        if alone and self._may_wait and _n_rows(graph) <= _MAX_ROWS_BEFORE:
            self._packing.pause()
            self._may_wait = False
        else:
            self._finish_packing()

    def end_step(self) -> None:
        if self._packing is not None:
            self._packing.resume()

    def _finish_packing(self) -> None:
        if self._packing is not None:
            self._packing.finish()
            self._packing = None

    def tuning(self) -> dict[str, str]:
        found = {f"prefetching of {name}": way for name, way in prefetching().items()}
        if self._n_f16:
            n_of = f"{self._n_as_bf16} of {self._n_f16}"
            found["weights of f16"] = f"{n_of} have only numbers of bf16 and are multiplied as bf16"
        return found

    def close(self) -> None:
        if self._packing is not None:
            self._packing.stop()
            self._packing = None
        super().close()
        if self._pool != ffi.NULL:
            self.library.handle.ggml_threadpool_free(self._pool)
            self._pool = ffi.NULL


def _find_bf16(weights: Sequence[DenseWeight], n_threads: int) -> None:
    """Choose BF16 for the F16 weights that have only its numbers."""
    for weight, holds in zip(weights, which_hold_bf16([w.stored_data() for w in weights], n_threads), strict=True):
        if holds:
            weight.format = PackedFormat.BF16


def _check_and_pack(weight: DenseWeight, meter: Meter) -> None:
    """For a weight on the disk: both at once, because memory may have no room for the whole file."""
    _find_bf16([weight], 1)
    Packing([weight], 1, meter).finish()


def _n_rows(graph: Graph) -> int:
    """The most rows that a weight of the graph multiplies."""
    products = (node for node in graph.nodes if node.op in ("linear", "linear_experts"))
    return max((node.size // node.shape[-1] for node in products), default=0)


def _as_product(weight: WeightData) -> WeightData:
    """The weight as its products read it: ``load_weights`` loads a second layout if it has other uses, too."""
    return dataclasses.replace(weight, uses=tuple(use for use in weight.uses if use == "linear") or weight.uses)
