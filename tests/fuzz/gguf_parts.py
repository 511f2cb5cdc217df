"""A GGUF file taken apart, so that each part of it can be made to lie, and put together again."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.gguf_files import gguf_bytes, key, tensor

__all__ = ["ARRAY", "CODES", "STRING", "Key", "Parts", "Row", "pack"]

STRING, ARRAY = 8, 9
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
"""Types of numbers in the metadata, by ``struct``'s letters."""


@dataclass
class Key:
    name: str
    type: int
    payload: bytes


@dataclass
class Row:
    """A tensor; ``dims`` in the file's order. ``offset`` None: where its data come to lie."""

    name: str
    dims: list[int]
    type: int
    data: bytes
    offset: int | None = None
    n_dims: int | None = None


@dataclass
class Parts:
    keys: list[Key] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    version: int = 3
    n_keys: int | None = None
    n_rows: int | None = None

    @classmethod
    def of(cls, path: Path) -> Parts:
        """Those of a good file, little-endian and aligned to 32 bytes."""
        raw = path.read_bytes()
        at = 8

        def number(code: str) -> int:
            nonlocal at
            (value,) = struct.unpack_from(f"<{code}", raw, at)
            at += struct.calcsize(f"<{code}")
            return int(value)

        def text() -> str:
            nonlocal at
            n = number("Q")
            at += n
            return raw[at - n : at].decode()

        def skip(kind: int) -> None:
            nonlocal at
            if kind == STRING:
                text()
            elif kind == ARRAY:
                inner, n = number("I"), number("Q")
                for _ in range(n):
                    skip(inner)
            else:
                at += struct.calcsize(CODES[kind])

        parts = cls()
        n_rows, n_keys = number("Q"), number("Q")
        for _ in range(n_keys):
            name, kind, begin = text(), number("I"), at
            skip(kind)
            parts.keys.append(Key(name, kind, raw[begin:at]))
        offsets = []
        for _ in range(n_rows):
            name = text()
            dims = [number("Q") for _ in range(number("I"))]
            parts.rows.append(Row(name, dims, number("I"), b""))
            offsets.append(number("Q"))
        base = -(-at // 32) * 32
        ends = [*offsets[1:], len(raw) - base]  # llama.cpp writes them in the table's order
        for row, begin, end in zip(parts.rows, offsets, ends, strict=True):
            row.data = raw[base + begin : base + end]
        return parts

    def key(self, name: str) -> Key | None:
        return next((k for k in self.keys if k.name == name), None)

    def put(self, name: str, kind: int, payload: bytes) -> None:
        """Set a key, or add it."""
        found = self.key(name)
        if found is None:
            self.keys.append(Key(name, kind, payload))
        else:
            found.type, found.payload = kind, payload

    def bytes(self) -> bytes:
        table, data = [], b""
        for row in self.rows:
            offset = len(data) if row.offset is None else row.offset
            table.append(tensor(row.name.encode(errors="surrogatepass"), row.dims, row.type, offset, n_dims=row.n_dims))
            data += row.data + bytes(-len(row.data) % 32)
        keys = [key(k.name.encode(errors="surrogatepass"), k.type, k.payload) for k in self.keys]
        return gguf_bytes(keys, table, data, version=self.version, n_keys=self.n_keys, n_tensors=self.n_rows)


def pack(kind: int, value: Any) -> bytes:
    """A value as the file has it: a number, a string, or of an array its (type, list)."""
    if kind == STRING:
        raw = value if isinstance(value, bytes) else value.encode(errors="surrogatepass")
        return struct.pack("<Q", len(raw)) + raw
    if kind == ARRAY:
        inner, items = value
        return struct.pack("<IQ", inner, len(items)) + b"".join(pack(inner, item) for item in items)
    return struct.pack(f"<{CODES[kind]}", value)
