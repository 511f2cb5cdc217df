"""Weights: where each is placed on its device, and in which layout.

One that the device may read in place stays in the mapped file; one that the CPU multiplies faster in a layout of its
own is rearranged, by ggml or by us; the rest is copied. Those of one kind share a buffer.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.errors import UnsupportedOpError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Tensor
from hotshoe_ggml._native import ffi, lib
from hotshoe_ggml.buffers import ALIGNMENT, NativeContext, OutOfMemory, TensorBuffer
from hotshoe_ggml.cpu.packed import ALIGNMENT as PACKED_ALIGNMENT
from hotshoe_ggml.cpu.packed import PRODUCTS, PackedWeight
from hotshoe_ggml.cpu.pages import FreshPages, enlarge_pages
from hotshoe_ggml.lowering import extents
from hotshoe_ggml.transfer import Meter, address, copy_all, drop_pages, memory_owner, run_all, zeros
from hotshoe_ggml.unit import Unit

__all__ = ["Layout", "PackedBuffer", "WeightBuffer", "as_read", "hold", "load_weights"]


class Rearranged:
    """A weight in a layout that only ggml's own product with it understands: what else reads it must not be built.

    ggml would not notice: to its other ops, and to views, these are the bytes that the type says.
    """

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor


class DualLayout:
    """A weight that products read in a layout of their own, and other ops as the file has it.

    So it is with an embedding that is the output's weight too: its rows are taken from the mapped file, where
    only those pages are ever read, and the product over the whole vocabulary runs in the fast layout.
    """

    __slots__ = ("linear", "other")

    def __init__(self, other: Any, linear: Any) -> None:
        self.other = other
        self.linear = linear


class Layout(NamedTuple):
    """One of the layouts that a weight is kept in: it is the key of a tensor in a buffer."""

    key: str
    """The weight's, see WeightData."""

    of_product: bool = False
    """Whether it is a second layout, which only products read."""


def hold(key: str, buffer: WeightBuffer, product: WeightBuffer | None = None) -> Any:
    """The handle of a weight or state in ``buffer``. product: where its second layout is, if it has one."""
    handle = _handle(buffer, Layout(key))
    return handle if product is None else DualLayout(handle, _handle(product, Layout(key, of_product=True)))


def _handle(buffer: WeightBuffer, layout: Layout) -> Any:
    tensor = buffer.tensors[layout]
    return Rearranged(tensor) if buffer.rearranged else tensor


def as_read(weight: Tensor, handle: Any, op: str, operand: int) -> Any:
    """What operand number ``operand`` of ``op`` reads of a leaf: ggml's tensor or, for a product, a PackedWeight.

    Raises UnsupportedOpError where the weight lies in a layout that this op cannot read.
    """
    is_weight = operand == 1 and PRODUCTS.get(weight.ndim) == op
    if isinstance(handle, DualLayout):
        handle = handle.linear if is_weight and op == "linear" else handle.other
    if not isinstance(handle, (Rearranged, PackedWeight)) or is_weight:
        return handle.tensor if isinstance(handle, Rearranged) else handle
    raise UnsupportedOpError(
        f"{op}: {weight!r} is rearranged for {PRODUCTS[weight.ndim]}, the only use it was loaded for",
        hint=f"name {op!r} among its uses as well, or open the backend with repack=False",
    )


class _Part(NamedTuple):
    """A layout, and the weight with the uses of that layout only."""

    layout: Layout
    weight: WeightData


def _layouts(w: WeightData, *, split: bool) -> list[_Part]:
    """The weight with the uses of each layout that it is kept in. split: products may have a layout of their own."""
    others = tuple(use for use in w.uses if use != "linear")
    if not split or not others or len(others) == len(w.uses):
        return [_Part(Layout(w.key), w)]
    products = dataclasses.replace(w, uses=("linear",))
    return [_Part(Layout(w.key), dataclasses.replace(w, uses=others)), _Part(Layout(w.key, of_product=True), products)]


class PackedBuffer:
    """One weight in the layout of our own product, as a buffer of one tensor."""

    def __init__(self, layout: Layout, packed: PackedWeight) -> None:
        self.tensors = {layout: packed}
        self.rearranged = False  # as a PackedWeight says itself
        self._size = packed.nbytes

    def nbytes(self, layout: Layout) -> int:
        return self._size

    def release_one(self) -> None:
        self.free()

    def free(self) -> None:
        self.tensors.clear()  # a graph that still uses the weight keeps it


WeightBuffer = TensorBuffer | PackedBuffer


def load_weights(
    unit: Unit, weights: Sequence[WeightData], *, mmap: bool, repack: bool | Literal["engine"], dry: bool, meter: Meter
) -> list[WeightBuffer]:
    """All weights of a device, in as few buffers as their kinds allow. Raises OutOfMemory, and then holds nothing."""
    groups: dict[tuple[str, int], tuple[Any, list[_Part]]] = {}
    buffers: list[WeightBuffer] = []
    layouts = unit.layouts() if repack else []
    packs = unit.packs if repack is True else lambda w: False
    split = bool(layouts) or (repack is True and unit.own_kernels)
    own: list[_Part] = []
    for part in (part for w in weights for part in _layouts(w, split=split)):
        w = part.weight
        if packs(w):
            own.append(part)
            continue
        layout = next((each for each in layouts if _fits(unit.handle, each, w)), unit.buffer_type)
        plain = layout is unit.buffer_type
        owner = memory_owner(w.data) if mmap and plain and not dry and unit.maps_pages and _mappable(w) else None
        key = ("mapped", id(owner)) if owner is not None else ("copied", int(ffi.cast("uintptr_t", layout)))
        groups.setdefault(key, (layout, []))[1].append(part)
    try:
        for (kind, _), (layout, members) in groups.items():
            buffer = TensorBuffer(len(members))
            buffers.append(buffer)
            _fill(unit, buffer, kind, layout, members, dry, meter)
        _pack_all(unit, own, dry, meter, buffers)
    except BaseException:
        for each in buffers:
            each.free()
        raise
    return buffers


def _fill(
    unit: Unit, buffer: TensorBuffer, kind: str, layout: Any, parts: list[_Part], dry: bool, meter: Meter
) -> None:
    weights = [part.weight for part in parts]
    tensors = [buffer.add(part.layout, w.name, w.shape, w.dtype) for part, w in zip(parts, weights)]
    try:
        if kind == "mapped":
            buffer.map_pages(unit.handle, list(zip(tensors, weights)))
        else:
            buffer.allocate(layout, dry=dry)
    except OutOfMemory as e:
        largest = max(weights, key=lambda w: w.data.nbytes)
        raise OutOfMemory(e.size, unit.name, largest.layer) from None
    lib().ggml_backend_buffer_set_usage(buffer.buffer, lib().GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
    buffer.rearranged = layout is not unit.buffer_type
    if kind == "copied" and not dry:
        copy_all([(tensor, w.data) for tensor, w in zip(tensors, weights)], meter, unit.n_copying, buffer.rearranged)
    else:
        meter.add(sum(w.data.nbytes for w in weights))


def _pack_all(unit: Unit, parts: list[_Part], dry: bool, meter: Meter, buffers: list[WeightBuffer]) -> None:
    """Several at a time, the largest first: none is left for one thread alone at the end."""

    def after(part: np.ndarray[Any, Any]) -> None:
        drop_pages(part)
        meter.add(part.nbytes)

    def pack(packed: PackedWeight, start: int) -> None:
        part = memory[start : start + packed.nbytes]
        packed.pack(part, before=lambda first, stop: pages.take(start + first, start + stop), after=after)

    largest_first = sorted(parts, key=lambda part: -part.weight.data.nbytes)
    all_packed = [unit.packed(part.weight) for part in largest_first]
    buffers += [PackedBuffer(part.layout, packed) for part, packed in zip(largest_first, all_packed)]
    if dry:
        meter.add(sum(part.weight.data.nbytes for part in parts))
        return
    sizes = (-(-packed.nbytes // PACKED_ALIGNMENT) * PACKED_ALIGNMENT for packed in all_packed)
    starts = list(itertools.accumulate(sizes, initial=0))
    try:
        memory = zeros(starts[-1])
        pages = FreshPages(memory)
        run_all([functools.partial(pack, *job) for job in zip(all_packed, starts)], unit.n_copying)
    except MemoryError:
        raise OutOfMemory(starts[-1], unit.name, largest_first[0].weight.layer) from None
    enlarge_pages(memory)


def _mappable(w: WeightData) -> bool:
    """Whether the weight's pages may be read in place."""
    return not w.data.flags.writeable and w.data.flags.c_contiguous and address(w.data) % ALIGNMENT == 0


def _fits(device: Any, buft: Any, w: WeightData) -> bool:
    """Whether every use of the weight works from this buffer type: asked of the device with a mock node."""
    if not w.uses or any(use != PRODUCTS.get(len(w.shape)) for use in w.uses):
        return False  # ggml aborts on shapes that do not fit the op
    g = lib()
    owner = NativeContext(8)
    context = owner.pointer
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
        owner.free()
