"""Quantize and dequantize in NumPy with the ``gguf`` package: slow and correct. The reference backend uses it."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from hotshoe_core.errors import DTypeError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_core.tensors.tensor import Shape

__all__ = ["can_quantize", "dequantize", "quantize", "round_to"]

Array = np.ndarray[Any, Any]


def dequantize(data: Array, dtype: DType, shape: Shape) -> Array:
    """The values of ``data`` (flat uint8). Plain types keep their NumPy dtype and memory; other types become float32.

    Raises DTypeError for a format that ``gguf`` cannot read.
    """
    if dtype.numpy is not None:
        return data.view(dtype.numpy).reshape(shape)
    from gguf import GGMLQuantizationType, quants

    rows = data.reshape(-1, dtype.nbytes(shape[-1:]))
    try:
        return quants.dequantize(rows, GGMLQuantizationType(dtype.id)).reshape(shape)
    except (NotImplementedError, ValueError):
        raise DTypeError(
            f"the gguf package cannot dequantize {dtype.name}", hint="pip install --upgrade gguf"
        ) from None


@functools.cache
def can_quantize(dtype: DType) -> bool:
    """Whether ``quantize`` can write this type and a weight of a file can have it."""
    if dtype.is_integer or dtype is DType.F64:
        return False
    try:
        quantize(np.zeros(dtype.block_size, np.float32), dtype)
    except DTypeError:
        return False
    return True


def quantize(x: Array, dtype: DType) -> Array:
    """``x`` in the storage of ``dtype``, as flat uint8. Raises DTypeError for a format that ``gguf`` cannot write."""
    dtype.nbytes(x.shape)  # raises if the last axis is not a whole number of blocks
    if dtype.numpy is not None:
        return np.ascontiguousarray(x, dtype.numpy).reshape(-1).view(np.uint8)
    from gguf import GGMLQuantizationType, quants

    rows = np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1] if x.ndim else 1)
    try:
        return quants.quantize(rows, GGMLQuantizationType(dtype.id)).reshape(-1).view(np.uint8)
    except (NotImplementedError, ValueError):
        raise DTypeError(f"the gguf package cannot quantize to {dtype.name}", hint="use Q8_0 or Q4_0") from None


def round_to(x: Array, dtype: DType) -> Array:
    """The values that ``dtype`` would store for ``x``: in its NumPy dtype, or as float32 if it has none."""
    if dtype.numpy is not None:
        return x.astype(dtype.numpy, copy=False)
    return dequantize(quantize(x, dtype), dtype, x.shape)
