"""Weights from a file's blocks to MLX's groups, to the last bit where a group can hold a block; else as arrays.

A block of most formats is codes of a few bits with a scale, and perhaps a minimum, for 32 elements. That is MLX's
affine group, once scales are F32: products of two scales, as the K formats have, need more digits than F16 has.
Formats whose scales are for 16 elements (Q2_K, Q3_K, Q6_K) fit no group, nor do those of a codebook.
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
_AT_ONCE = 1 << 22  # elements that are taken apart together: what it takes beside the weight itself
_READERS = frozenset({"linear", "linear_experts", "matmul", "take"})
_IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int16)


class Groups(NamedTuple):
    """Of n blocks: codes (groups, 32) as uint8, scales and biases (groups,) as float32."""

    codes: Bytes
    scales: np.ndarray[Any, Any]
    biases: np.ndarray[Any, Any]


class Format(NamedTuple):
    """How the blocks of a type become groups of codes of so many bits."""

    bits: int
    groups: Callable[[Bytes], Groups]


def _half(blocks: Bytes, at: int) -> np.ndarray[Any, Any]:
    """The float16 at a place of each block, as float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")[:, 0].astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """(n, 16) to (n, 32): the low halves first."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """(n, 32): the bits of the uint32 at a place, as 0 or 16."""
    bits = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
    return bits << 4


def _q8_0(blocks: Bytes) -> Groups:
    scales = _half(blocks, 0)
    return Groups(blocks[:, 2:] ^ 128, scales, scales * -128)  # two's complement and 128 above differ in one bit


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
    """Eight groups a block; each has a scale of 6 bits, four of them in a nibble and two in ``high``."""
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")[:, 0]
    low = blocks[:, 4:8]
    low = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 8)
    scales = low | ((high[:, None] >> np.arange(0, 16, 2)) & 3).astype(np.uint8) << 4
    each = (_half(blocks, 0)[:, None] * (scales.astype(np.float32) - 32)).reshape(-1)
    return Groups(_iq4_codes(_nibbles(blocks[:, 8:].reshape(-1, 16))), each, each * -128)


def _iq4_codes(nibbles: Bytes) -> Bytes:
    return np.asarray((_IQ4_VALUES + 128).astype(np.uint8)[nibbles])


def _k_scales(blocks: Bytes) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scales and biases of the eight groups of a Q4_K or Q5_K block: 6 bits each, in the 12 bytes from the 4th on."""
    first, second, rest = (blocks[:, i : i + 4] for i in (4, 8, 12))
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=1)
    scaled, least = _half(blocks, 0)[:, None] * scales, _half(blocks, 2)[:, None] * minima
    return scaled.reshape(-1).astype(np.float32), -least.reshape(-1).astype(np.float32)


def _pairs_of_groups(packed: Bytes) -> Bytes:
    """(n, 128) to (8 n, 32): 32 bytes hold two groups, one in the low halves."""
    parts = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([parts & 15, parts >> 4], axis=2).reshape(-1, 32)


def _q4_k(blocks: Bytes) -> Groups:
    return Groups(_pairs_of_groups(blocks[:, 16:]), *_k_scales(blocks))


def _q5_k(blocks: Bytes) -> Groups:
    """Bit i of byte j is the fifth of element j in group i."""
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
"""The formats that become groups without loss; MXFP4 is MLX's own, too."""


def is_packed(w: WeightData) -> bool:
    """Whether groups serve: the format permits, and one of the weight's readers multiplies by them or takes rows."""
    readers = not w.uses or not _READERS.isdisjoint(w.uses)
    return (w.dtype in PACKED or w.dtype is DType.MXFP4) and len(w.shape) >= 2 and readers


def weight_nbytes(w: WeightData, *, gpu: bool) -> int:
    n = math.prod(w.shape)
    if not is_packed(w):
        return n * _stored_as(w.dtype, gpu=gpu).size
    if w.dtype is DType.MXFP4:
        return n // 2 + n // GROUP
    return n * PACKED[w.dtype].bits // 8 + n // GROUP * 8


def _stored_as(dtype: DType, *, gpu: bool) -> mx.Dtype:
    """A weight that is no group: as the file has it. A CPU multiplies F32 only, a GPU keeps blocks in F16."""
    plain = {DType.I8: mx.int8, DType.I16: mx.int16, DType.I32: mx.int32, DType.I64: mx.int64, DType.F32: mx.float32}
    if dtype in plain:
        return plain[dtype]
    if not gpu:
        return mx.float64 if dtype is DType.F64 else mx.float32
    return {DType.BF16: mx.bfloat16, DType.F64: mx.float32}.get(dtype, mx.float16)


def load_weight(w: WeightData, *, gpu: bool) -> Packed | mx.array:
    """A weight's bytes as the device multiplies them. They are read once, a few million elements at a time."""
    if not is_packed(w):
        return _load_dense(w, gpu=gpu)
    blocks = w.data.reshape(-1, w.dtype.block_bytes)
    loaded = _pack_mxfp4(blocks, w) if w.dtype is DType.MXFP4 else _pack(blocks, w)
    mx.eval(loaded.arrays)
    return loaded


def _pack(blocks: Bytes, w: WeightData) -> Packed:
    form = PACKED[w.dtype]
    n = math.prod(w.shape) // GROUP
    per_block = w.dtype.block_size // GROUP
    codes = np.empty((n, GROUP * form.bits // 8), np.uint8)
    scales, biases = np.empty(n, np.float32), np.empty(n, np.float32)
    step = _AT_ONCE // w.dtype.block_size
    for start in range(0, len(blocks), step):
        part = form.groups(blocks[start : start + step])
        at = slice(start * per_block, start * per_block + len(part.scales))
        codes[at], scales[at], biases[at] = _pack_bits(part.codes, form.bits), part.scales, part.biases
    leading, groups = w.shape[:-1], w.shape[-1] // GROUP
    return Packed(
        mx.array(codes.view("<u4").reshape(*leading, -1)),
        mx.array(scales.reshape(*leading, groups)),
        mx.array(biases.reshape(*leading, groups)),
        form.bits,
        GROUP,
        "affine",
    )


def _pack_bits(codes: Bytes, bits: int) -> Bytes:
    """(n, 32) to (n, 4 bits): a stream of bits that begins with the lowest of the first code."""
    if bits == 8:
        return codes
    if bits == 4:
        return np.asarray(codes[:, ::2] | codes[:, 1::2] << 4)
    each = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little")
    return np.packbits(each.reshape(len(codes), -1), axis=1, bitorder="little")


def _pack_mxfp4(blocks: Bytes, w: WeightData) -> Packed:
    """The same numbers in another order: MLX has neighbours in a byte, the file elements 16 apart."""
    codes = _pack_bits(_nibbles(blocks[:, 1:]), 4)
    leading, groups = w.shape[:-1], w.shape[-1] // GROUP
    return Packed(
        mx.array(codes.view("<u4").reshape(*leading, -1)),
        mx.array(np.ascontiguousarray(blocks[:, 0]).reshape(*leading, groups)),
        None,
        4,
        GROUP,
        "mxfp4",
    )


def _load_dense(w: WeightData, *, gpu: bool) -> mx.array:
    dtype = _stored_as(w.dtype, gpu=gpu)
    if w.dtype is DType.BF16:
        loaded = mx.array(w.data.view("<u2").reshape(w.shape)).view(mx.bfloat16)
    else:
        loaded = mx.array(dequantize(w.data, w.dtype, w.shape), dtype)
    loaded = loaded.astype(dtype)
    mx.eval(loaded)
    return loaded
