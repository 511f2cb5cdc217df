"""The head of a GGUF file from parts that are bytes already: what the ``gguf`` package's writer would make anew.

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
    """A tensor in the table."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def nbytes(self) -> int:
        return self.dtype.nbytes(self.shape)


def u32_entry(key: str, value: int) -> bytes:
    """A key with a number."""
    return _text(key) + struct.pack("<II", ValueType.UINT32.id, value)


def string_entry(key: str, value: str) -> bytes:
    """A key with a text."""
    return _text(key) + struct.pack("<I", ValueType.STRING.id) + _text(value)


def strings_entry(key: str, values: Sequence[str]) -> bytes:
    """A key with a list of texts."""
    about = struct.pack("<IIQ", ValueType.ARRAY.id, ValueType.STRING.id, len(values))
    return _text(key) + about + b"".join(map(_text, values))


def head(entries: Sequence[bytes], rows: Iterable[Row], alignment: int) -> bytes:
    """All that comes before the tensors' data, which follow each other in this order, each padded."""
    table, offset = [], 0
    for row in rows:
        dims = row.shape[::-1]
        table.append(_text(row.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, row.dtype.id, offset))
        offset += row.nbytes + padding(row.nbytes, alignment)
    raw = b"GGUF" + struct.pack("<IQQ", _VERSION, len(table), len(entries)) + b"".join(entries) + b"".join(table)
    return raw + bytes(padding(len(raw), alignment))


def padding(size: int, alignment: int) -> int:
    """Bytes to the next multiple."""
    return -size % alignment


def _text(value: str) -> bytes:
    raw = value.encode("utf-8", "surrogateescape")  # names of files that are no UTF-8
    return struct.pack("<Q", len(raw)) + raw
