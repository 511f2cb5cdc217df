"""Block formats by ggml's functions: rows of float32 to blocks and back, without a graph or a device.

The functions of libggml-base have no state except tables, which ggml makes once under a lock. cffi releases Python's
lock while they run, so several threads can quantize at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hotshoe_core.errors import DTypeError, ShapeError
from hotshoe_core.tensors.dtypes import DType
from hotshoe_ggml.native.libraries import ffi, lib

__all__ = ["dequantize_rows", "quantize_rows", "writes"]

Array = np.ndarray[Any, Any]

_PLAIN = (DType.F32, DType.F16, DType.BF16)
_LEGACY = (DType.Q4_0, DType.Q4_1, DType.Q5_0, DType.Q5_1)
_K = (DType.Q2_K, DType.Q3_K, DType.Q4_K, DType.Q5_K, DType.Q6_K)
_I = (
    *(DType.IQ1_S, DType.IQ1_M, DType.IQ2_XXS, DType.IQ2_XS, DType.IQ2_S),
    *(DType.IQ3_XXS, DType.IQ3_S, DType.IQ4_NL, DType.IQ4_XS),
)
# the types of ggml_quantize_chunk, which aborts or does nothing for others
_WEIGHED = frozenset({*_LEGACY, *_K, *_I})
_UNWEIGHED = frozenset(
    {*_PLAIN, DType.Q8_0, DType.TQ1_0, DType.TQ2_0, DType.MXFP4, DType.NVFP4, DType.Q1_0, DType.Q2_0}
)


def writes(dtype: DType, *, importance: bool = False) -> bool:
    """Whether ``quantize_rows`` writes this type. importance: whether it also makes use of an importance."""
    return dtype in _WEIGHED or (not importance and dtype in _UNWEIGHED)


def quantize_rows(rows: Array, dtype: DType, importance: Array | None = None) -> Array:
    """See Backend.quantize_rows. Raises DTypeError or ShapeError where ggml would abort."""
    if not writes(dtype):
        raise DTypeError(f"ggml does not write {dtype.name}")
    if rows.ndim != 2 or rows.dtype != np.float32 or not rows.flags.c_contiguous:
        raise ShapeError(f"rows are {rows.dtype}{list(rows.shape)}; expected contiguous float32 (n, columns)")
    n, columns = rows.shape
    out = np.empty((n, dtype.nbytes((columns,))), np.uint8)
    if importance is not None and (importance.dtype != np.float32 or importance.shape != (columns,)):
        raise ShapeError(f"importance is {importance.dtype}{list(importance.shape)}; expected float32 ({columns},)")
    if importance is None and lib().ggml_quantize_requires_imatrix(dtype.id):
        raise DTypeError(f"ggml writes {dtype.name} only with the importance of each column")
    if not out.size:
        return out
    # aligned copies if necessary, which live until the call returns: a file may align its tensors to single bytes
    rows = np.require(rows, requirements="A")
    weights = None if importance is None else np.require(importance, requirements=["C", "A"])
    written = lib().ggml_quantize_chunk(
        dtype.id,
        ffi.from_buffer("const float[]", rows),
        ffi.from_buffer(out),
        0,
        n,
        columns,
        ffi.NULL if weights is None else ffi.from_buffer("const float[]", weights),
    )
    if written != out.size:
        raise DTypeError(f"this ggml wrote {written} bytes of {dtype.name}; expected {out.size}")
    return out


def dequantize_rows(data: Array, dtype: DType, n_columns: int) -> Array:
    """See Backend.dequantize_rows."""
    row = dtype.nbytes((n_columns,))
    if data.ndim != 2 or data.dtype != np.uint8 or data.shape[1] != row or not data.flags.c_contiguous:
        raise ShapeError(f"data is {data.dtype}{list(data.shape)}; expected contiguous uint8 (n, {row})")
    if dtype is DType.F32:
        return data.view(np.float32)
    convert = lib().ggml_get_type_traits(dtype.id).to_float
    if convert == ffi.NULL:
        raise DTypeError(f"ggml does not read {dtype.name} as numbers")
    out = np.empty((len(data), n_columns), np.float32)
    if out.size:
        convert(ffi.from_buffer(data), ffi.from_buffer("float[]", out), out.size)
    return out
