"""Load weights and make states: where each is stored on its device, and in which layout.

A weight that the device may read in place stays in the mapped file. One that the unit multiplies faster in another
layout is rearranged by ggml, or packed for our kernels. Others are copied. Weights of one kind share a buffer.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml.memory.buffers import ALIGNMENT, Buffer, PackedBuffer, TensorBuffer
from hotshoe_ggml.memory.host import memory_owner, zeros
from hotshoe_ggml.memory.layouts import PRODUCTS, DualLayout, Layout
from hotshoe_ggml.memory.transfer import Meter, copy_all
from hotshoe_ggml.native import ffi, lib
from hotshoe_ggml.native.context import NativeContext, OutOfMemory, address, extents
from hotshoe_ggml.unit import Unit

__all__ = ["Stored", "load_weights", "make_state"]


class Stored(NamedTuple):
    """A weight or state in the memory of a device."""

    layout: Layout
    buffers: list[Buffer]
    """Each has counted the tensor once: see Buffer.release_one."""

    nbytes: int


class _Key(NamedTuple):
    """The key of a tensor in a buffer."""

    weight: str
    of_product: bool
    """Whether it is a second layout, which only products read."""


class _Part(NamedTuple):
    """A weight with the uses of one layout only."""

    key: _Key
    weight: WeightData


def load_weights(
    unit: Unit, weights: Sequence[WeightData], *, mmap: bool, repack: bool | Literal["engine"], dry: bool, meter: Meter
) -> dict[str, Stored]:
    """Load the weights of a device, by their ``key``, in as few buffers as possible.

    Raises OutOfMemory; then no memory stays allocated.
    """
    groups: dict[tuple[str, int], tuple[Any, list[_Part]]] = {}
    to_pack: list[_Part] = []
    buffer_types = unit.buffer_types() if repack else []
    split = bool(buffer_types) or (repack is True and unit.can_pack)
    for part in (part for w in weights for part in _parts(w, split=split)):
        w = part.weight
        if repack is True and unit.packs(w):
            to_pack.append(part)
            continue
        kind = next((t for t in buffer_types if _fits(unit.device_pointer, t, w)), unit.buffer_type)
        plain = kind is unit.buffer_type
        owner = memory_owner(w.data) if mmap and plain and not dry and unit.maps_pages and _is_mappable(w) else None
        group = ("mapped", id(owner)) if owner is not None else ("copied", int(ffi.cast("uintptr_t", kind)))
        groups.setdefault(group, (kind, []))[1].append(part)
    buffers: dict[_Key, Buffer] = {}
    try:
        for (how, _), (kind, parts) in groups.items():
            buffer = TensorBuffer(len(parts))
            buffers |= {part.key: buffer for part in parts}
            with _add_device_to_errors(unit, parts):
                _fill(unit, buffer, how, kind, parts, dry, meter)
        if to_pack:
            with _add_device_to_errors(unit, to_pack):
                layouts = unit.pack([part.weight for part in to_pack], dry=dry, meter=meter)
            buffers |= {part.key: PackedBuffer(layout) for part, layout in zip(to_pack, layouts)}
    except BaseException:
        for allocated in buffers.values():
            allocated.free()
        raise
    return {w.key: _stored(w.key, buffers) for w in weights}


def make_state(unit: Unit, shape: tuple[int, ...], dtype: DType, name: str, *, dry: bool) -> Stored:
    """A zeroed tensor in a new buffer. Raises OutOfMemory.

    If the device computes in the host's memory, Linux provides each page when it is first written, so the unused part
    of a long context takes no memory.
    """
    key, buffer, g = _Key(name, False), TensorBuffer(1), lib()
    try:
        tensor = buffer.add(key, name, shape, dtype)
        if unit.maps_pages and not dry and g.ggml_backend_buft_is_host(unit.buffer_type):
            nbytes = int(g.ggml_nbytes(tensor))
            try:
                buffer.use_memory(unit.device_pointer, [(tensor, zeros(max(nbytes, 1)))])
            except MemoryError:
                raise OutOfMemory(nbytes) from None
        else:
            buffer.allocate(unit.buffer_type, dry=dry)
            if not dry:
                g.ggml_backend_buffer_clear(buffer.buffer, 0)
    except BaseException:
        buffer.free()
        raise
    return _stored(name, {key: buffer})


def _stored(weight: str, buffers: dict[_Key, Buffer]) -> Stored:
    key, second = _Key(weight, False), _Key(weight, True)
    buffer, product = buffers[key], buffers.get(second)
    layout, size = buffer.layout(key), buffer.nbytes(key)
    if product is None:
        return Stored(layout, [buffer], size)
    if product is not buffer:  # in one mapping they are the same pages
        size += product.nbytes(second)
    return Stored(DualLayout(layout, product.layout(second)), [buffer, product], size)


def _parts(w: WeightData, *, split: bool) -> list[_Part]:
    """The weight. If ``split``, and its uses are ``linear`` and others: two parts, one for ``linear``."""
    others = tuple(use for use in w.uses if use != "linear")
    if not split or not others or len(others) == len(w.uses):
        return [_Part(_Key(w.key, False), w)]
    as_stored, for_products = dataclasses.replace(w, uses=others), dataclasses.replace(w, uses=("linear",))
    return [_Part(_Key(w.key, False), as_stored), _Part(_Key(w.key, True), for_products)]


@contextlib.contextmanager
def _add_device_to_errors(unit: Unit, parts: list[_Part]) -> Iterator[None]:
    """Add to an OutOfMemory the name of the device, and the layer of the largest weight."""
    try:
        yield
    except OutOfMemory as e:
        largest = max(parts, key=lambda part: part.weight.data.nbytes).weight
        raise OutOfMemory(e.size, unit.name, largest.layer) from None


def _fill(unit: Unit, buffer: TensorBuffer, how: str, kind: Any, parts: list[_Part], dry: bool, meter: Meter) -> None:
    weights = [part.weight for part in parts]
    tensors = [buffer.add(part.key, w.name, w.shape, w.dtype) for part, w in zip(parts, weights)]
    if how == "mapped":
        buffer.map_pages(unit.device_pointer, list(zip(tensors, weights)))
    else:
        buffer.allocate(kind, dry=dry)
    lib().ggml_backend_buffer_set_usage(buffer.buffer, lib().GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
    buffer.rearranged = kind is not unit.buffer_type
    if how == "copied" and not dry:
        copy_all([(tensor, w.data) for tensor, w in zip(tensors, weights)], meter, unit.n_copying, buffer.rearranged)
    else:
        meter.add(sum(w.data.nbytes for w in weights))


def _is_mappable(w: WeightData) -> bool:
    """Whether the weight's pages may be read in place."""
    return not w.data.flags.writeable and w.data.flags.c_contiguous and address(w.data) % ALIGNMENT == 0


def _fits(device: Any, buffer_type: Any, w: WeightData) -> bool:
    """Whether every use of the weight works from this buffer type: asks the device about a node that never runs."""
    if not w.uses or any(use != PRODUCTS.get(len(w.shape)) for use in w.uses):
        return False  # ggml aborts if a shape does not fit the op
    g = lib()
    owner = NativeContext(8)
    context = owner.pointer
    buffer = g.ggml_backend_buft_alloc_buffer(buffer_type, 0)
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
