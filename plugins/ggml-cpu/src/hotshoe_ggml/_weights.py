"""Weights and states: mapped from the file, repacked for the CPU (by ggml or by us), or copied.

One *holding* is one ggml buffer with its tensors, or one weight we packed. It is freed when its last tensor is
released.
"""

from __future__ import annotations

import dataclasses
import mmap
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from hotshoe_core.backend import Progress, WeightData
from hotshoe_core.dtypes import DType
from hotshoe_core.errors import DTypeError
from hotshoe_ggml._native import BackendLibrary, ffi, lib
from hotshoe_ggml._packed import PackedFormat, PackedWeight, packable
from hotshoe_ggml.lowering import extents

__all__ = ["Holding", "OutOfMemory", "PackedHolding", "Tied", "hold_state", "hold_weights", "linear_name", "split_tied"]

_ALIGNMENT = 32  # TENSOR_ALIGNMENT of ggml's CPU backend, and GGUF's default
_CHUNK = 64 << 20  # bytes copied between two reports of progress
_AHEAD = 256 << 20  # bytes whose pages are touched in one call
_GAP = 1 << 20  # bytes between two weights, as of norms, that are touched too


class OutOfMemory(Exception):  # noqa: N818  (told apart from MemoryError)
    """A buffer of ``size`` bytes was refused."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class Holding:
    """A ggml buffer, the context its tensors live in, and whatever memory it borrows."""

    def __init__(self, n_tensors: int) -> None:
        self.context = new_context(n_tensors)
        self.buffer: Any = ffi.NULL
        self.tensors: dict[str, Any] = {}
        self.borrowed: list[Any] = []
        self.ahead: _ReadAhead | None = None
        self.left = n_tensors

    def add(self, name: str, shape: tuple[int, ...], dtype: DType) -> Any:
        if lib().ggml_row_size(dtype.id, dtype.block_size) != dtype.block_bytes:
            raise DTypeError(f"{name}: {dtype.name} is laid out otherwise in this ggml than in GGUF files")
        tensor = lib().ggml_new_tensor(self.context, dtype.id, 4, extents(shape))
        lib().ggml_set_name(tensor, name.encode()[:63])
        self.tensors[name] = tensor
        return tensor

    def allocate(self, buft: Any, *, dry: bool) -> None:
        """Memory of this buffer type for all tensors. Raises OutOfMemory."""
        g = lib()
        if dry:
            self.buffer = g.ggml_backend_buft_alloc_buffer(buft, 0)
            for tensor in self.tensors.values():
                tensor.buffer = self.buffer
                tensor.data = ffi.cast("void *", _ALIGNMENT)  # "allocated", as far as ggml's planner asks
        else:
            self.buffer = g.ggml_backend_alloc_ctx_tensors_from_buft(self.context, buft)
            if self.buffer == ffi.NULL:
                raise OutOfMemory(g.ggml_backend_alloc_ctx_tensors_from_buft_size(self.context, buft))

    def borrow(self, device: Any, weights: Sequence[WeightData]) -> None:
        """Use the pages the weights lie in, which are one mapping. Raises OutOfMemory if the device refuses."""
        g = lib()
        start = min(address(w.data) for w in weights)
        size = max(address(w.data) + w.data.nbytes for w in weights) - start
        largest = max(w.data.nbytes for w in weights)
        self.borrowed.extend(w.data for w in weights)
        self.buffer = g.ggml_backend_dev_buffer_from_host_ptr(device, ffi.cast("void *", start), size, largest)
        if self.buffer == ffi.NULL:
            raise OutOfMemory(size)
        for w in weights:
            g.ggml_backend_tensor_alloc(self.buffer, self.tensors[w.name], ffi.cast("void *", address(w.data)))
        # those that every token reads whole; of an embedding or an expert it takes a part
        whole = [w.data for w in weights if w.uses == ("linear",)]
        if whole:
            self.ahead = _ReadAhead(np.frombuffer(_root(whole[0]), np.uint8), whole)

    def nbytes(self, name: str) -> int:
        """What the tensor takes in this buffer, padding of its layout included."""
        tensor = self.tensors[name]
        return int(lib().ggml_backend_buft_get_alloc_size(lib().ggml_backend_buffer_get_type(self.buffer), tensor))

    def release_one(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.free()

    def free(self) -> None:
        if self.ahead is not None:
            self.ahead.stop()
            self.ahead = None
        if self.buffer != ffi.NULL:
            lib().ggml_backend_buffer_free(self.buffer)
            self.buffer = ffi.NULL
        if self.context != ffi.NULL:
            lib().ggml_free(self.context)
            self.context = ffi.NULL
        self.borrowed.clear()


class Tied:
    """A weight that products read in a layout of their own, and other ops as the file has it.

    So it is with an embedding that is the output's weight too: its rows are taken from the mapped file, where
    only those pages are ever read, and the product over the whole vocabulary runs in the fast layout.
    """

    __slots__ = ("linear", "other")

    def __init__(self, other: Any, linear: Any) -> None:
        self.other = other
        self.linear = linear

    def of(self, op: str) -> Any:
        return self.linear if op == "linear" else self.other


def split_tied(weights: Sequence[WeightData]) -> list[WeightData]:
    """A weight with products among its uses and others becomes two, the product's named by ``linear_name``."""
    parts = []
    for w in weights:
        rest = tuple(u for u in w.uses if u != "linear")
        if rest and len(rest) < len(w.uses):
            parts.append(dataclasses.replace(w, uses=rest))
            parts.append(dataclasses.replace(w, name=linear_name(w.name), uses=("linear",)))
        else:
            parts.append(w)
    return parts


def linear_name(name: str) -> str:
    return f"{name} (product)"


class PackedHolding:
    """One weight in the layout of our own product."""

    def __init__(self, weight: WeightData, format: PackedFormat, *, dry: bool) -> None:
        try:
            packed = PackedWeight(weight, format, dry=dry)
        except MemoryError:
            raise OutOfMemory(weight.data.nbytes) from None
        self.tensors = {weight.name: packed}
        self._size = packed.nbytes

    def nbytes(self, name: str) -> int:
        return self._size

    def release_one(self) -> None:
        self.free()

    def free(self) -> None:
        self.tensors.clear()  # a graph that still uses the weight keeps it


def hold_weights(
    library: BackendLibrary,
    device: Any,
    weights: Sequence[WeightData],
    *,
    mmap: bool,
    repack: bool,
    own_kernels: bool,
    dry: bool,
    n_threads: int,
    progress: Progress | None,
) -> list[Holding | PackedHolding]:
    """All weights, in as few buffers as their kinds allow. Raises OutOfMemory, and then holds nothing."""
    g = lib()
    default = g.ggml_backend_dev_buffer_type(device)
    packed = library.extra_buffer_types(device) if repack else []
    groups: dict[tuple[str, int], tuple[Any, list[WeightData]]] = {}
    ours: list[tuple[WeightData, PackedFormat]] = []
    for w in weights:
        format = packable(w) if own_kernels and repack and w.compute_bound else None
        if format is not None:
            ours.append((w, format))
            continue
        buft = next((p for p in packed if _fits_packed(device, p, w)), default)
        root = _mapping(w) if mmap and buft is default and not dry else None
        key = ("mapped", id(root)) if root is not None else ("copied", int(ffi.cast("uintptr_t", buft)))
        groups.setdefault(key, (buft, []))[1].append(w)
    holdings: list[Holding | PackedHolding] = []
    meter = _Meter(sum(w.data.nbytes for w in weights), progress)
    try:
        for (kind, _), (buft, members) in groups.items():
            holding = Holding(len(members))
            holdings.append(holding)
            for w in members:
                holding.add(w.name, w.shape, w.dtype)
            if kind == "mapped":
                holding.borrow(device, members)
            else:
                holding.allocate(buft, dry=dry)
            g.ggml_backend_buffer_set_usage(holding.buffer, g.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
            if kind == "copied" and not dry:
                _copy_all([(holding.tensors[w.name], w.data) for w in members], meter, n_threads, buft is not default)
            else:
                meter.add(sum(w.data.nbytes for w in members))
        for w, format in ours:
            holdings.append(PackedHolding(w, format, dry=dry))
            _drop_pages(w.data)
            meter.add(w.data.nbytes)
    except BaseException:
        for holding in holdings:
            holding.free()
        raise
    return holdings


def hold_state(device: Any, shape: tuple[int, ...], dtype: DType, name: str, *, dry: bool) -> Holding:
    """One zeroed tensor in a buffer of its own. Raises OutOfMemory."""
    holding = Holding(1)
    try:
        holding.add(name, shape, dtype)
        holding.allocate(lib().ggml_backend_dev_buffer_type(device), dry=dry)
    except BaseException:
        holding.free()
        raise
    if not dry:
        lib().ggml_backend_buffer_clear(holding.buffer, 0)
    return holding


def new_context(n_tensors: int, n_graph: int = 0) -> Any:
    """A ggml context for tensors' descriptions; their data lies elsewhere."""
    g = lib()
    size = n_tensors * g.ggml_tensor_overhead()
    if n_graph:
        size += g.ggml_graph_overhead_custom(n_graph, False)
    return g.ggml_init({"mem_size": max(size, 64), "mem_buffer": ffi.NULL, "no_alloc": True})


def address(data: np.ndarray[Any, Any]) -> int:
    return int(data.__array_interface__["data"][0])


def _mapping(w: WeightData) -> Any | None:
    """What keeps the weight's pages mapped, if the device may read them in place."""
    if w.data.flags.writeable or not w.data.flags.c_contiguous or address(w.data) % _ALIGNMENT:
        return None
    return _root(w.data)


def _root(data: Any) -> Any:
    """The object whose memory an array is of."""
    while isinstance(data, np.ndarray):
        data = data.base
    return data.obj if isinstance(data, memoryview) else data


def _fits_packed(device: Any, buft: Any, w: WeightData) -> bool:
    """Whether every use of the weight works from this buffer type: asked of the device with a mock node."""
    n_axes = {"linear": 2, "linear_experts": 3}
    if not w.uses or any(n_axes.get(use) != len(w.shape) for use in w.uses):
        return False  # ggml aborts on shapes that do not fit the op
    g = lib()
    context = new_context(8)
    buffer = g.ggml_backend_buft_alloc_buffer(buft, 0)
    try:
        weight = g.ggml_new_tensor(context, w.dtype.id, 4, extents(w.shape))
        weight.buffer = buffer
        x = g.ggml_new_tensor_2d(context, DType.F32.id, w.shape[-1], 512)
        if w.uses[0] == "linear":
            node = g.ggml_mul_mat(context, weight, x)
        else:
            x = g.ggml_reshape_3d(context, x, w.shape[-1], 1, 512)
            ids = g.ggml_new_tensor_2d(context, DType.I32.id, 1, 512)
            node = g.ggml_mul_mat_id(context, weight, x, ids)
        return bool(g.ggml_backend_dev_supports_op(device, node))
    finally:
        g.ggml_backend_buffer_free(buffer)
        g.ggml_free(context)


class _ReadAhead:
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
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """In few calls: each releases Python's lock, and must have it for the next."""
        for run in self._runs:
            for start in range(0, run.size, _AHEAD):
                if self._stopped:
                    return
                np.bitwise_or.reduce(run[start : start + _AHEAD : mmap.PAGESIZE])

    def stop(self) -> None:
        self._stopped = True
        self._thread.join()
        self._runs.clear()


class _Meter:
    """Tells the caller how far it is, in the caller's own thread only."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.total = max(total, 1)
        self.done = 0
        self.progress = progress
        self._thread = threading.get_ident()
        self._lock = threading.Lock()

    def add(self, n: int) -> None:
        with self._lock:
            self.done += n
        if self.progress is not None and threading.get_ident() == self._thread:
            self.progress(min(1.0, self.done / self.total))


def _copy_all(pairs: list[tuple[Any, np.ndarray[Any, Any]]], meter: _Meter, n_threads: int, whole: bool) -> None:
    """Into the device's memory, several tensors at a time: rearranging them is work for all cores."""
    waiting = iter(pairs)
    failed: list[BaseException] = []
    lock = threading.Lock()

    def work() -> None:
        try:
            while not failed:
                with lock:
                    pair = next(waiting, None)
                if pair is None:
                    return
                _copy(*pair, meter, whole=whole)
                _drop_pages(pair[1])
        except BaseException as error:
            failed.append(error)

    helpers = [threading.Thread(target=work, daemon=True) for _ in range(min(n_threads, len(pairs)) - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    if failed:
        raise failed[0]


def _copy(tensor: Any, data: np.ndarray[Any, Any], meter: _Meter, *, whole: bool) -> None:
    """In pieces; a layout that is rearranged on the way takes a tensor whole."""
    step = data.nbytes if whole else _CHUNK
    for start in range(0, data.nbytes, max(step, 1)):
        piece = data[start : start + step]
        lib().ggml_backend_tensor_set(tensor, ffi.from_buffer(piece), start, piece.nbytes)
        meter.add(piece.nbytes)


def _drop_pages(data: np.ndarray[Any, Any]) -> None:
    """Once copied, the pages of a mapped file need not stay in memory beside the copy. They can come again."""
    root = _root(data)
    if not isinstance(root, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    offset = address(data) - address(np.frombuffer(root, np.uint8))
    start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
    stop = (offset + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if start < stop:
        root.madvise(mmap.MADV_DONTNEED, start, stop - start)
