"""Read safetensors files: the header, then one tensor at a time.

The ``safetensors`` package cannot convert bfloat16 to NumPy, so this module reads the format itself: 8 bytes with the
length of the header (little endian), a JSON header ``{name: {dtype, shape, data_offsets}}``, and the data. Every number
in the header is checked. Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotshoe_core.errors import ConversionError, ModelFileError

__all__ = ["FLOATS", "StoredTensor", "read_header", "read_raw", "read_tensor"]

_MAX_HEADER = 100_000_000  # the limit of the reference implementation

# name in the file: (NumPy dtype, bytes); NumPy has no bfloat16, so its bits are read as integers
FLOATS = {"F64": ("<f8", 8), "F32": ("<f4", 4), "F16": ("<f2", 2), "BF16": ("<u2", 2)}
_BYTES = ("U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a safetensors file. Its data are the bytes ``start`` to ``stop`` of the file."""

    name: str
    dtype: str
    """The name of the type in the file, such as "BF16"."""
    shape: tuple[int, ...]
    path: Path
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Read the header: the tensors by name. Raises ModelFileError if the file is not safetensors or is damaged."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, _MAX_HEADER):
                raise ModelFileError(
                    f"the header claims {length} bytes, but the file has {size}; it is not a complete safetensors file",
                    path=path,
                    field="header length",
                    offset=0,
                    hint="download the file again (a Git LFS pointer or an interrupted download looks like this)",
                )
            raw = file.read(length)
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror or error}", path=path) from error
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"the header is not JSON: {error}", path=path, field="header", offset=8) from None
    if not isinstance(header, dict):
        raise ModelFileError(f"the header is of type {type(header).__name__}, expected an object", path=path, offset=8)
    header.pop("__metadata__", None)
    return {name: _stored(name, entry, path, 8 + length, size) for name, entry in header.items()}


def _stored(name: str, entry: Any, path: Path, data: int, size: int) -> StoredTensor:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        numbers = (begin, end, *shape)
        fine = isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in numbers)
    except (TypeError, KeyError, ValueError):
        fine = False
    if not fine:
        raise ModelFileError(
            f"the header's entry is {str(entry)[:80]}; expected dtype, shape and data_offsets", path=path, field=name
        )
    if not begin <= end <= size - data:
        raise ModelFileError(
            f"the data is at {begin} to {end}, outside the {size - data} bytes after the header",
            path=path,
            field=name,
            hint="download the file again: it is cut short",
        )
    itemsize = 1 if dtype in _BYTES else FLOATS.get(dtype, ("", 0))[1]
    if itemsize and math.prod(shape) * itemsize != end - begin:
        raise ModelFileError(
            f"{dtype} of shape {shape} takes {math.prod(shape) * itemsize} bytes, but the header says {end - begin}",
            path=path,
            field=name,
        )
    return StoredTensor(name, dtype, shape, path, data + begin, data + end)


def read_tensor(tensor: StoredTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Read the values as float32, from any float type. Raises ConversionError for another type."""
    if tensor.dtype not in FLOATS:
        raise ConversionError(
            f"tensor {tensor.name} of {tensor.path} has type {tensor.dtype}; expected one of {', '.join(FLOATS)}",
            hint="a checkpoint quantized for another engine cannot be converted: use the original checkpoint",
        )
    flat = read_raw(tensor).reshape(-1)
    if tensor.dtype == "BF16":
        # a bfloat16 is the upper half of a float32
        flat = (flat.astype("<u4") << 16).view("<f4")
    return flat.astype(np.float32, copy=False).reshape(tensor.shape)


def read_raw(tensor: StoredTensor) -> np.ndarray[Any, Any]:
    """Read the elements as they are stored. Those of 8 bits, and of types that NumPy lacks, are unsigned integers."""
    dtype, itemsize = FLOATS.get(tensor.dtype, ("u1", 1))
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.start)
            flat = np.fromfile(file, dtype=dtype, count=(tensor.stop - tensor.start) // itemsize)
    except OSError as error:
        raise ModelFileError(
            f"cannot be read: {error.strerror or error}", path=tensor.path, field=tensor.name
        ) from error
    if flat.size * itemsize != tensor.stop - tensor.start:
        raise ModelFileError("the file became shorter while it was read", path=tensor.path, field=tensor.name)
    return flat.reshape(tensor.shape)
