"""Convert weights from a file's blocks to MLX's groups, without loss; other weights become arrays.

In most formats, a block has codes of a few bits with a scale, and perhaps a minimum, for 32 elements. That is an affine
group of MLX if scales are F32: the K formats multiply two scales, which needs more digits than F16 has. Formats with
scales for 16 elements (Q2_K, Q3_K, Q6_K) do not fit a group, and neither do formats with a codebook.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from hotshoe_core.contract.backend import WeightData
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.quants import dequantize
from hotshoe_mlx._packed import Packed

__all__ = ["PACKED", "load_weight", "weight_nbytes"]

Bytes = np.ndarray[Any, Any]  # uint8

GROUP = 32
_AT_ONCE = 1 << 22  # elements that are unpacked at once, which limits the temporary memory
_READERS = frozenset({"linear", "linear_experts", "matmul", "take"})
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16)


class Groups(NamedTuple):
    """The groups of several blocks: codes (groups, 32) as uint8, scales and biases (groups,) as float32."""

    codes: Bytes
    scales: np.ndarray[Any, Any]
    biases: np.ndarray[Any, Any]


class Format(NamedTuple):
    """How the blocks of a type become groups."""

    bits: int
    """Bits of a code."""

    groups: Callable[[Bytes], Groups]


def _half(blocks: Bytes, offset: int) -> np.ndarray[Any, Any]:
    """The float16 at a byte offset of each block, as float32."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view("<f2")[:, 0].astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Split bytes into nibbles, (n, 16) to (n, 32): the low nibbles first."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(blocks: Bytes, offset: int) -> Bytes:
    """The bits of the uint32 at a byte offset of each block, as 0 or 16: (n, 32)."""
    bits = np.unpackbits(blocks[:, offset : offset + 4], axis=1, bitorder="little")
    return bits << 4


def _q8_0(blocks: Bytes) -> Groups:
    scales = _half(blocks, 0)
    return Groups(blocks[:, 2:] ^ 128, scales, scales * -128)  # x + 128 differs from two's complement in one bit


def _q4_0(blocks: Bytes) -> Groups:
    scales = _half(blocks, 0)
    return Groups(_nibbles(blocks[:, 2:]), scales, scales * -8)


def _q4_1(blocks: Bytes) -> Groups:
    return Groups(_nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2))


def _q5_0(blocks: Bytes) -> Groups:
    scales = _half(blocks, 0)
    return Groups(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), scales, scales * -16)


def _q5_1(blocks: Bytes) -> Groups:
    return Groups(_nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4), _half(blocks, 0), _half(blocks, 2))


def _iq4_nl(blocks: Bytes) -> Groups:
    scales = _half(blocks, 0)
    return Groups(_iq4_codes(_nibbles(blocks[:, 2:])), scales, scales * -128)


def _iq4_xs(blocks: Bytes) -> Groups:
    """Eight groups in each block; each has a scale of 6 bits, four of them in a nibble and two in ``high``."""
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")[:, 0]
    low = blocks[:, 4:8]
    low = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 8)
    scales = low | ((high[:, None] >> np.arange(0, 16, 2)) & 3).astype(np.uint8) << 4
    by_group = (_half(blocks, 0)[:, None] * (scales.astype(np.float32) - 32)).reshape(-1)
    return Groups(_iq4_codes(_nibbles(blocks[:, 8:].reshape(-1, 16))), by_group, by_group * -128)


def _iq4_codes(nibbles: Bytes) -> Bytes:
    return np.asarray((_IQ4_VALUES + 128).astype(np.uint8)[nibbles])


def _k_scales(blocks: Bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scales and biases of the eight groups of a Q4_K or Q5_K block: 6 bits each, in bytes 4 to 15."""
    first, second, rest = (blocks[:, i : i + 4] for i in (4, 8, 12))
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=1)
    scaled, least = _half(blocks, 0)[:, None] * scales, _half(blocks, 2)[:, None] * minima
    return scaled.reshape(-1).astype(np.float32), -least.reshape(-1).astype(np.float32)


def _pairs_of_groups(packed: Bytes) -> Bytes:
    """(n, 128) to (8 n, 32): 32 bytes contain two groups, the first one in the low nibbles."""
    parts = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([parts & 15, parts >> 4], axis=2).reshape(-1, 32)


def _q4_k(blocks: Bytes) -> Groups:
    return Groups(_pairs_of_groups(blocks[:, 16:]), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> Groups:
    """Bit i of byte j is the fifth bit of element j in group i."""
    fifth = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")  # (n, 32, 8)
    high = np.swapaxes(fifth, 1, 2).reshape(-1, 32) << 4
    return Groups(_pairs_of_groups(blocks[:, 48:]) | high, *_k_scales(blocks))


PACKED: Mapping[DType, Format] = {
    DType.Q8_0: Format(8, _q8_0),
    DType.Q4_0: Format(4, _q4_0),
    DType.Q4_1: Format(4, _q4_1),
    DType.Q5_0: Format(5, _q5_0),
    DType.Q5_1: Format(5, _q5_1),
    DType.Q4_K: Format(4, _q4_k),
    DType.Q5_K: Format(5, _q5_k),
    DType.IQ4_NL: Format(8, _iq4_nl),
    DType.IQ4_XS: Format(8, _iq4_xs),
}
"""The formats that become groups without loss; MXFP4 is also one of MLX's own formats."""


def is_packed(w: WeightData) -> bool:
    """Whether the weight becomes groups: its format fits, and one of its readers multiplies by it or takes rows."""
    readers = not w.uses or not _READERS.isdisjoint(w.uses)
    return (w.dtype in PACKED or w.dtype is DType.MXFP4) and len(w.shape) >= 2 and readers


def weight_nbytes(w: WeightData, *, gpu: bool) -> int:
    """Bytes that ``load_weight`` takes for a weight."""
    n = math.prod(w.shape)
    if not is_packed(w):
        return n * _stored_as(w.dtype, gpu=gpu).size
    if w.dtype is DType.MXFP4:
        return n // 2 + n // GROUP
    return n * PACKED[w.dtype].bits // 8 + n // GROUP * 8


def _stored_as(dtype: DType, *, gpu: bool) -> mx.Dtype:
    """The type of a weight that is not in groups. A CPU multiplies F32 only; a GPU keeps quantized blocks in F16."""
    plain = {DType.I8: mx.int8, DType.I16: mx.int16, DType.I32: mx.int32, DType.I64: mx.int64, DType.F32: mx.float32}
    if dtype in plain:
        return plain[dtype]
    if not gpu:
        return mx.float64 if dtype is DType.F64 else mx.float32
    return {DType.BF16: mx.bfloat16, DType.F64: mx.float32}.get(dtype, mx.float16)


def load_weight(w: WeightData, *, gpu: bool) -> Packed | mx.array:
    """Load a weight in the layout that the device multiplies.

    Reads its bytes once, a few million elements at a time.
    """
    if not is_packed(w):
        return _load_dense(w, gpu=gpu)
    blocks = w.data.reshape(-1, w.dtype.block_bytes)
    loaded = _pack_mxfp4(blocks, w) if w.dtype is DType.MXFP4 else _pack(blocks, w)
    mx.eval(loaded.arrays)
    return loaded


def _pack(blocks: Bytes, w: WeightData) -> Packed:
    layout = PACKED[w.dtype]
    n = math.prod(w.shape) // GROUP
    per_block = w.dtype.block_size // GROUP
    codes = np.empty((n, GROUP * layout.bits // 8), np.uint8)
    scales, biases = np.empty(n, np.float32), np.empty(n, np.float32)
    step = _AT_ONCE // w.dtype.block_size
    for start in range(0, len(blocks), step):
        part = layout.groups(blocks[start : start + step])
        rows = slice(start * per_block, start * per_block + len(part.scales))
        codes[rows], scales[rows], biases[rows] = _pack_bits(part.codes, layout.bits), part.scales, part.biases
    return Packed(_rows(w, codes.view("<u4")), _rows(w, scales), _rows(w, biases), layout.bits, GROUP, "affine")


def _pack_bits(codes: Bytes, bits: int) -> Bytes:
    """Pack codes, (n, 32), to (n, 4 * bits): a stream of bits, from the lowest bit of the first code on."""
    if bits == 8:
        return codes
    if bits == 4:
        return np.asarray(codes[:, ::2] | codes[:, 1::2] << 4)
    stream = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little")
    return np.packbits(stream.reshape(len(codes), -1), axis=1, bitorder="little")


def _pack_mxfp4(blocks: Bytes, w: WeightData) -> Packed:
    """Reorder the codes: in MLX, neighbours share a byte; in the file, elements at a distance of 16 do."""
    codes, scales = _pack_bits(_nibbles(blocks[:, 1:]), 4), np.ascontiguousarray(blocks[:, 0])
    return Packed(_rows(w, codes.view("<u4")), _rows(w, scales), None, 4, GROUP, "mxfp4")


def _rows(w: WeightData, array: np.ndarray[Any, Any]) -> mx.array:
    return mx.array(array.reshape(*w.shape[:-1], -1))


def _load_dense(w: WeightData, *, gpu: bool) -> mx.array:
    dtype = _stored_as(w.dtype, gpu=gpu)
    if w.dtype is DType.BF16:
        loaded = mx.array(w.data.view("<u2").reshape(w.shape)).view(mx.bfloat16)
    else:
        loaded = mx.array(dequantize(w.data, w.dtype, w.shape), dtype)
    loaded = loaded.astype(dtype)
    mx.eval(loaded)
    return loaded
