"""Weights that a checkpoint stores as small codes with scales: FP8, MXFP4 and NVFP4.

Sources: OCP Microscaling Formats (MX) 1.0 for E2M1, E4M3, E5M2 and E8M0; the layouts of gpt-oss, of DeepSeek-V3, of
NVIDIA's ModelOpt and of compressed-tensors. The value of a weight is code * scale of its block * factor of the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotshoe.convert._safetensors import FLOATS, StoredTensor, read_raw, read_tensor
from hotshoe_core.errors import ConversionError
from hotshoe_core.tensors.dtypes import DType

__all__ = ["Scaled", "join_scales"]

Array = np.ndarray[Any, np.dtype[np.float32]]
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1 = np.concatenate([_E2M1, -_E2M1])
_BYTES = np.arange(256, dtype=np.uint8)
_E5M2 = (_BYTES.astype("<u2") << 8).view("<f2").astype(np.float32)
_E8M0 = np.where(_BYTES == 255, np.nan, np.exp2(_BYTES.astype(np.float64) - 127)).astype(np.float32)
_FP8 = ("F8_E4M3", "F8_E5M2")
# scales of activations and of the cache in 8 bits: hotshoe rounds neither to such types
_NOT_READ = (".k_scale", ".v_scale", ".q_scale", ".activation_scale", "_activation_scale", ".input_scale")


def _e4m3() -> Array:
    exponent, mantissa = (_BYTES >> 3 & 15).astype(np.float64), (_BYTES & 7) / 8
    value = np.where(exponent == 0, mantissa * 2.0**-6, (1 + mantissa) * 2.0 ** (exponent - 7))
    value = np.where(_BYTES & 127 == 127, np.nan, value)
    return np.where(_BYTES & 128, -value, value).astype(np.float32)


_TABLES = {"F8_E4M3": _e4m3(), "F8_E5M2": _E5M2, "F8_E8M0": _E8M0, "U8": _E8M0}


@dataclass(frozen=True, slots=True)
class Scaled(StoredTensor):
    """A tensor of codes with scales. ``shape`` is that of its values, ``dtype`` "FP8", "MXFP4" or "NVFP4"."""

    codes: StoredTensor
    scales: StoredTensor
    factor: StoredTensor | None = None
    """A factor of the whole matrix, or of each of several."""
    input_factor: StoredTensor | None = None
    """A factor of the activations, for engines that round these too."""
    inverse: bool = False
    """True if the factors divide."""
    block: tuple[int, ...] = ()
    """FP8: rows and columns with one scale."""

    @property
    def nbytes(self) -> int:
        parts = (self.codes, self.scales, self.factor, self.input_factor)
        return sum(part.stop - part.start for part in parts if part is not None)

    @property
    def packed(self) -> DType | None:
        """The type of GGUF that holds these blocks without loss, or None."""
        found = {"MXFP4": DType.MXFP4, "NVFP4": DType.NVFP4}.get(self.dtype)
        return found if found is not None and self.shape[-1] % found.block_size == 0 else None

    def read(self) -> Array:
        """The values as float32."""
        codes = read_raw(self.codes)
        if self.dtype == "FP8":
            value: Array = _TABLES[self.codes.dtype][codes] * self._spread(_floats(self.scales))
            return value
        scales = _TABLES[self.scales.dtype][self._raw_scales()][..., None]  # (..., rows, blocks, 1)
        value = _E2M1[_nibbles(codes).reshape(*scales.shape[:-1], -1)] * scales
        if self.factor is not None:
            value *= self.factors().reshape(-1, *[1] * (value.ndim - 1))
        return value.reshape(self.shape)

    def read_blocks(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The blocks as GGUF has them, without the factor: (..., rows, bytes of a row)."""
        scales = self._raw_scales()  # (..., rows, blocks)
        codes = _nibbles(read_raw(self.codes)).reshape(*scales.shape, -1)
        half = codes.shape[-1] // 2
        codes = codes[..., :half] | codes[..., half:] * np.uint8(16)
        if self.dtype == "NVFP4":  # four blocks of 16, after their scales
            scales = scales.reshape(*scales.shape[:-1], -1, 4)
            codes = codes.reshape(*scales.shape[:-1], -1)
        else:
            scales = scales[..., None]
        return np.concatenate([scales, codes], axis=-1).reshape(*self.shape[:-1], -1)

    def factors(self, of_input: bool = False) -> Array:
        """The factor of the matrix, or of its input: one number, or one for each of several matrices."""
        stored = self.input_factor if of_input else self.factor
        if stored is None:
            return np.ones(1, np.float32)
        value = _floats(stored).reshape(-1)
        return np.float32(1) / value if self.inverse else value

    def _raw_scales(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of the scales of MXFP4 or NVFP4. Raises ConversionError if one is negative or not a number."""
        scales = read_raw(self.scales)
        if scales.size and scales.max() >= (127 if self.dtype == "NVFP4" else 255):
            raise ConversionError(
                f"tensor {self.scales.name} of {self.scales.path} has a scale that is negative or not a number",
                hint="convert the original checkpoint, which is not quantized",
            )
        return scales

    def _spread(self, scales: Array) -> Array:
        """Repeat scales over their blocks, so that they can be multiplied with the codes."""
        if scales.size == 1:
            return scales.reshape(())
        scales = scales.reshape(*scales.shape, *[1] * (len(self.shape) - scales.ndim))
        for axis, (n, size) in enumerate(zip(self.shape, self.block, strict=True)):
            if scales.shape[axis] not in (1, n):
                scales = scales.repeat(size, axis).take(np.arange(n), axis)
        return scales


def join_scales(tensors: Mapping[str, StoredTensor], config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """Replace tensors of codes and their scales by one Scaled each, with the name that the weight has elsewhere.

    Raises ConversionError if the shapes of codes and scales do not fit each other.
    """
    found, used = dict(tensors), set[str]()
    for name, codes in tensors.items():
        base = _base(name, codes)
        names = [f"{base}{end}" for end in ("_scales", "_scale", "_scale_inv")]
        scales = next((tensors[n] for n in names if n in tensors), None)
        if base is None or scales is None:
            continue
        module = base.removesuffix("weight")
        inverse = f"{base}_global_scale" in tensors
        factor = tensors.get(f"{base}_global_scale" if inverse else f"{base}_scale_2")
        inputs = tensors.get(f"{module}input_{'global_' if inverse else ''}scale")
        del found[name]
        found[base] = _scaled(base, codes, scales, factor, inputs, inverse, config)
        used |= {part.name for part in (scales, factor, inputs) if part is not None}
    if not used:
        return found
    return {n: t for n, t in found.items() if n not in used and not n.endswith(_NOT_READ)}


def _base(name: str, codes: StoredTensor) -> str | None:
    """The name of the weight whose codes a tensor holds, or None if it cannot hold codes."""
    if codes.dtype == "U8" and name.endswith(("_blocks", "weight_packed")):
        return name.rpartition("_")[0]
    return name if codes.dtype in ("U8", *_FP8) else None


def _scaled(
    name: str,
    codes: StoredTensor,
    scales: StoredTensor,
    factor: StoredTensor | None,
    inputs: StoredTensor | None,
    inverse: bool,
    config: Mapping[str, Any],
) -> Scaled:
    block: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    if codes.dtype in _FP8:
        kind, shape = "FP8", codes.shape
        block = _fp8_block(shape, scales.shape, config)
        fits = bool(block)
    elif name + "_blocks" == codes.name:  # (..., rows, blocks, bytes)
        kind = "MXFP4"
        fits = len(codes.shape) > 2 and codes.shape[-1] == 16 and scales.shape == codes.shape[:-1]
        shape = (*codes.shape[:-2], 32 * codes.shape[-2]) if fits else ()
    else:
        kind, size = ("NVFP4", 16) if scales.dtype == "F8_E4M3" else ("MXFP4", 32)
        fits = len(codes.shape) > 1 and scales.shape == (*codes.shape[:-1], 2 * codes.shape[-1] // size)
        shape = (*codes.shape[:-1], size * scales.shape[-1]) if fits else ()
        fits = fits and shape[-1] == 2 * codes.shape[-1]
    if kind != "FP8":
        fits = fits and scales.dtype in (("F8_E4M3",) if kind == "NVFP4" else ("U8", "F8_E8M0"))
    matrices = (1, shape[0]) if len(shape) > 2 else (1,)
    factors = [part for part in (factor, inputs) if part is not None]
    if (
        not fits
        or any(part.dtype not in (*_TABLES, *FLOATS) for part in (scales, *factors))
        or any(math.prod(part.shape) not in matrices for part in factors)
    ):
        others = ", ".join(f"{part.name} {part.dtype} {part.shape}" for part in (scales, *factors))
        raise ConversionError(
            f"tensor {codes.name} of {codes.path} is {codes.dtype} {codes.shape}, and its scales are {others}; these "
            "do not fit each other",
            hint="convert the original checkpoint, which is not quantized",
        )
    place = (codes.path, codes.start, codes.stop)
    return Scaled(name, kind, shape, *place, codes, scales, factor, inputs, inverse, block)


def _fp8_block(shape: tuple[int, ...], stored: tuple[int, ...], config: Mapping[str, Any]) -> tuple[int, ...]:
    """Rows and columns with one scale, or () if the shapes do not fit each other."""
    scales = (*stored, *[1] * (len(shape) - len(stored))) if math.prod(stored) > 1 else (1,) * len(shape)
    stated = config.get("quantization_config")
    sizes = (stated.get("weight_block_size") if isinstance(stated, dict) else None) or [128, 128]
    if not isinstance(sizes, list) or len(sizes) != 2 or any(type(n) is not int or n < 1 for n in sizes):
        return ()
    if not math.prod(stored):
        return ()
    sizes = [*[1] * (len(shape) - 2), *sizes]
    # sizes need not be a multiple of the block's
    block = tuple(
        n if m == 1 else size if -(-n // size) == m else n // m if n % m == 0 else 0
        for n, m, size in zip(shape, scales, sizes, strict=False)
    )
    return block if len(block) == len(scales) == len(shape) and all(block) else ()


def _nibbles(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Two codes of each byte, the low one first: (..., n) to (..., 2n)."""
    return np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)


def _floats(stored: StoredTensor) -> Array:
    return read_tensor(stored) if stored.dtype in FLOATS else _TABLES[stored.dtype][read_raw(stored)]
