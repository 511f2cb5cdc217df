"""Element types: every type that a GGUF file can hold.

A type is a *block* format: ``block_size`` consecutive elements of the last axis are stored in ``block_bytes`` bytes.
Plain types have blocks of one element, and a NumPy dtype. Quantized types have no NumPy dtype.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np

from hotshoe_core.errors import DTypeError, ShapeError, did_you_mean
from hotshoe_core.errors.arguments import described
from hotshoe_core.errors.install import pip_install

__all__ = ["DType"]


class DType(enum.Enum):
    """Values are ``(GGUF type number, elements per block, bytes per block, NumPy dtype or "")``.

    Source of the numbers: ``enum ggml_type`` of ggml, and the GGUF specification. A test compares them with the tables
    of the ``gguf`` package.
    """

    F32 = (0, 1, 4, "<f4")
    F16 = (1, 1, 2, "<f2")
    Q4_0 = (2, 32, 18, "")
    Q4_1 = (3, 32, 20, "")
    Q5_0 = (6, 32, 22, "")
    Q5_1 = (7, 32, 24, "")
    Q8_0 = (8, 32, 34, "")
    Q8_1 = (9, 32, 40, "")
    Q2_K = (10, 256, 84, "")
    Q3_K = (11, 256, 110, "")
    Q4_K = (12, 256, 144, "")
    Q5_K = (13, 256, 176, "")
    Q6_K = (14, 256, 210, "")
    Q8_K = (15, 256, 292, "")
    IQ2_XXS = (16, 256, 66, "")
    IQ2_XS = (17, 256, 74, "")
    IQ3_XXS = (18, 256, 98, "")
    IQ1_S = (19, 256, 50, "")
    IQ4_NL = (20, 32, 18, "")
    IQ3_S = (21, 256, 110, "")
    IQ2_S = (22, 256, 82, "")
    IQ4_XS = (23, 256, 136, "")
    I8 = (24, 1, 1, "<i1")
    I16 = (25, 1, 2, "<i2")
    I32 = (26, 1, 4, "<i4")
    I64 = (27, 1, 8, "<i8")
    F64 = (28, 1, 8, "<f8")
    IQ1_M = (29, 256, 56, "")
    BF16 = (30, 1, 2, "")  # NumPy has no bfloat16: its bits are kept as bytes
    TQ1_0 = (34, 256, 54, "")
    TQ2_0 = (35, 256, 66, "")
    MXFP4 = (39, 32, 17, "")
    NVFP4 = (40, 64, 36, "")
    Q1_0 = (41, 128, 18, "")
    Q2_0 = (42, 64, 18, "")

    def __init__(self, id: int, block_size: int, block_bytes: int, numpy: str) -> None:
        self.id = id
        self.block_size = block_size
        self.block_bytes = block_bytes
        self.numpy: np.dtype[Any] | None = np.dtype(numpy) if numpy else None
        self.is_float = numpy.startswith("<f") or self.name == "BF16"
        """F32, F16, BF16 or F64: a plain float type, not a quantized one."""
        self.is_integer = numpy.startswith("<i")
        """I8, I16, I32 or I64."""
        self.is_quantized = block_size > 1
        """Whether elements are stored in blocks of several."""

    __hash__ = object.__hash__  # that of Enum is a function in Python, and a graph looks types up thousands of times

    def nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a contiguous tensor. Raises ShapeError if the last axis is not a whole number of blocks."""
        n = 1
        for d in shape:
            n *= d
        if self.block_size == 1:
            return n * self.block_bytes
        last = shape[-1] if shape else 1
        if last % self.block_size:
            raise ShapeError(
                f"a {self.name} tensor of shape {shape} has a last axis of {last} elements; "
                f"expected a multiple of {self.block_size}, the block size of {self.name}"
            )
        return n // self.block_size * self.block_bytes

    @classmethod
    def from_id(cls, id: int) -> DType:
        """The type with this GGUF number. Raises DTypeError for an unknown number."""
        try:
            return _BY_ID[id]
        except KeyError:
            raise DTypeError(
                f"type number {id} is not a GGUF tensor type that hotshoe knows (0 to {max(_BY_ID)})",
                hint=f"the file may be newer than this hotshoe: {pip_install('hotshoe', '--upgrade')}",
            ) from None

    @classmethod
    def parse(cls, name: str) -> DType:
        """The type of this name, in upper or lower case: ``"q8_0"``. Raises DTypeError with the nearest name."""
        if not isinstance(name, str):
            raise DTypeError(f"the name of an element type is {described(name)}; expected a str")
        try:
            return cls[name.upper()]
        except KeyError:
            hint = did_you_mean(name.lower(), (d.name.lower() for d in cls))
            raise DTypeError(f"no element type is called {name!r}", hint=hint) from None

    @classmethod
    def of(cls, array: np.ndarray[Any, Any]) -> DType:
        """The type of a NumPy array. Raises DTypeError for a NumPy dtype that no element type corresponds to."""
        try:
            return _BY_NUMPY[array.dtype.newbyteorder("<") if array.dtype.byteorder == "=" else array.dtype]
        except KeyError:
            raise DTypeError(
                f"a NumPy array of dtype {array.dtype} has no corresponding element type",
                hint=f"convert it to one of {', '.join(str(d) for d in _BY_NUMPY)}",
            ) from None

    def __repr__(self) -> str:
        return self.name


_BY_ID = {d.id: d for d in DType}
_BY_NUMPY = {d.numpy: d for d in DType if d.numpy is not None}
