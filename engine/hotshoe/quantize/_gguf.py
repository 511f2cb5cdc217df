"""Write the header of a GGUF file from entries that are bytes already, so that the old entries stay byte for byte.

Source: the GGUF specification (docs/gguf.md of ggml).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hotshoe_core.gguf import ValueType
from hotshoe_core.tensors.dtypes import DType

__all__ = ["Row", "head", "padding", "string_entry", "strings_entry", "u32_entry"]

_VERSION = 3


class Row(NamedTuple):
    """A tensor in the header's table."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.shape)


def u32_entry(key: str, value: int) -> bytes:
    """The bytes of a key with a uint32 value."""
    return _text(key) + struct.pack("<II", ValueType.UINT32.id, value)


def string_entry(key: str, value: str) -> bytes:
    """The bytes of a key with a string value."""
    return _text(key) + struct.pack("<I", ValueType.STRING.id) + _text(value)


def strings_entry(key: str, values: Sequence[str]) -> bytes:
    """The bytes of a key with an array of strings."""
    array_type = struct.pack("<IIQ", ValueType.ARRAY.id, ValueType.STRING.id, len(values))
    return _text(key) + array_type + b"".join(map(_text, values))


def head(entries: Sequence[bytes], rows: Iterable[Row], alignment: int) -> bytes:
    """The bytes before the data of the tensors. The data must follow in this order, each tensor padded."""
    table, offset = [], 0
    for row in rows:
        dims = row.shape[::-1]
        table.append(_text(row.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, row.dtype.id, offset))
        offset += row.nbytes + padding(row.nbytes, alignment)
    raw = b"GGUF" + struct.pack("<IQQ", _VERSION, len(table), len(entries)) + b"".join(entries) + b"".join(table)
    return raw + bytes(padding(len(raw), alignment))


def padding(size: int, alignment: int) -> int:
    """The number of bytes from ``size`` to the next multiple of ``alignment``."""
    return -size % alignment


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogateescape")  # file names may be invalid UTF-8
    return struct.pack("<Q", len(raw)) + raw
