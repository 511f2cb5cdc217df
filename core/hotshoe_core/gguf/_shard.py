"""Parse one GGUF file: header, metadata, tensor table. Every number is checked before it is used."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from hotshoe_core.errors import DTypeError, ModelFileError
from hotshoe_core.errors.install import pip_install
from hotshoe_core.gguf._array import LongString, decode_text, read_array
from hotshoe_core.gguf._cursor import Cursor
from hotshoe_core.gguf._format import (
    DAMAGED,
    DEFAULT_ALIGNMENT,
    LAZY_STRING_BYTES,
    MAX_DIMS,
    MAX_KEYS,
    MAX_NAME_BYTES,
    MAX_TENSORS,
    REMOVED_TYPES,
    ValueType,
    quoted,
)
from hotshoe_core.gguf._mapping import MappedFile
from hotshoe_core.gguf._metadata import Metadata
from hotshoe_core.tensors.dtypes import DType

__all__ = ["Shard", "TensorInfo"]

_MAX_BYTES = (1 << 63) - 1  # sizes are int64 in ggml


class TensorInfo(NamedTuple):
    """Describes a tensor and where it is in the file."""

    name: str

    shape: tuple[int, ...]
    """In NumPy order: the last axis is contiguous."""

    dtype: DType

    offset: int
    """Bytes from the start of the file."""

    nbytes: int

    shard: int = 0
    """The index of the file in ``GGUFFile.paths``."""

    made: Callable[[], npt.NDArray[np.uint8]] | None = None
    """Makes the tensor's bytes, if the file has them in another order; None if it has them as they are."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@final
class Shard:
    """One file, opened and parsed. ``number`` is the ``shard`` of its tensors."""

    __slots__ = ("alignment", "big_endian", "entries", "file", "metadata", "number", "tensors", "version")

    def __init__(self, path: Path, number: int = 0) -> None:
        self.number = number
        self.file = MappedFile(path)
        try:
            self._parse()
        except BaseException:
            self.file.close()
            raise

    def _parse(self) -> None:
        self.version, self.big_endian = _version(self.file)
        cursor = Cursor(self.file, 8, big_endian=self.big_endian)
        n_tensors = _limited(cursor, "number of tensors", MAX_TENSORS)
        n_keys = _limited(cursor, "number of keys", MAX_KEYS)
        self.entries: dict[str, slice] = {}  # the bytes of each key with its value
        self.metadata = _read_metadata(cursor, n_keys, self.entries)
        self.alignment = self._alignment()
        self.tensors = self._read_tensors(cursor, n_tensors)

    def _alignment(self) -> int:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        # The specification requires a multiple of 8, llama.cpp a power of two. Accept what llama.cpp accepts.
        if alignment < 1 or alignment & (alignment - 1):
            message, field = f"{alignment} is not a power of two", "key 'general.alignment'"
            raise ModelFileError(message, path=self.file.path, field=field, hint=DAMAGED)
        return alignment

    def _read_tensors(self, cursor: Cursor, n: int) -> dict[str, TensorInfo]:
        rows: dict[str, _Row] = {}
        for i in range(n):
            start = cursor.pos
            name = cursor.text(f"name of tensor {i}", MAX_NAME_BYTES)
            if name in rows:
                raise cursor.error("a second tensor of this name", f"tensor {quoted(name)}", offset=start, hint=DAMAGED)
            rows[name] = _read_row(cursor, f"tensor {quoted(name)}", self.alignment)
        base = -(-cursor.pos // self.alignment) * self.alignment
        tensors: dict[str, TensorInfo] = {}
        for name, row in rows.items():
            offset = base + row.offset
            end = offset + row.nbytes
            # An empty tensor at the end may come after padding that was not written.
            if end > self.file.size + (0 if row.nbytes else self.alignment):
                raise cursor.error(
                    f"the tensor's {row.nbytes} bytes begin at byte {offset} and end at byte {end}, "
                    f"but the file has only {self.file.size} bytes",
                    f"tensor {quoted(name)}, offset",
                    offset=row.offset_position,
                    hint=DAMAGED,
                )
            tensors[name] = TensorInfo(name, row.shape, row.dtype, offset, row.nbytes, self.number)
        _check_overlap(cursor, tensors)
        return tensors


class _Row(NamedTuple):
    """A row of the tensor table."""

    shape: tuple[int, ...]
    dtype: DType
    nbytes: int
    offset: int
    """Bytes from the start of the data section."""
    offset_position: int
    """The byte of the file at which ``offset`` is stored, for errors."""


def _read_row(cursor: Cursor, field: str, alignment: int) -> _Row:
    start = cursor.pos
    n_dims = cursor.u32(f"{field}, number of dimensions")
    if n_dims > MAX_DIMS:
        message = f"{n_dims}; expected at most {MAX_DIMS}"
        raise cursor.error(message, f"{field}, number of dimensions", offset=start, hint=DAMAGED)
    start = cursor.pos
    shape = tuple(cursor.u64(f"{field}, dimension {i}") for i in range(n_dims))[::-1]
    dtype = _dtype(cursor, f"{field}, type")
    last = shape[-1] if shape else 1
    if last % dtype.block_size:
        raise cursor.error(
            f"rows of {last} elements; expected a multiple of {dtype.block_size}, the block size of {dtype.name}",
            f"{field}, dimensions",
            offset=start,
            hint=DAMAGED,
        )
    # An empty tensor is valid, but its other dimensions have the same limits.
    if prod(d or 1 for d in shape) * dtype.block_bytes > _MAX_BYTES:
        message = f"a shape of {shape} has too many elements"
        raise cursor.error(message, f"{field}, dimensions", offset=start, hint=DAMAGED)
    position = cursor.pos
    offset = cursor.u64(f"{field}, offset")
    if offset % alignment:
        message = f"{offset} is not a multiple of {alignment}, the file's alignment"
        raise cursor.error(message, f"{field}, offset", offset=position, hint=DAMAGED)
    return _Row(shape, dtype, dtype.nbytes(shape), offset, position)


def _version(file: MappedFile) -> tuple[int, bool]:
    """The version, and whether the file is big-endian: in the wrong byte order, a small number has no low bits."""
    raw = file.view[4:8].tobytes()
    version = int.from_bytes(raw, "little")
    big_endian = version != 0 and version & 0xFFFF == 0
    if big_endian:
        version = int.from_bytes(raw, "big")
    if version not in (2, 3):
        if version == 1:
            hint = "this version ended in October 2023; get a newer file of the model, or convert it again"
        elif 3 < version < 100:
            hint = f"the file may be newer than this hotshoe: {pip_install('hotshoe', '--upgrade')}"
        else:
            hint = DAMAGED
        raise Cursor(file, 4).error(f"GGUF version {version}; expected 2 or 3", "version", hint=hint)
    return version, big_endian


def _limited(cursor: Cursor, field: str, limit: int) -> int:
    start = cursor.pos
    # The shortest key has 8 + 1 bytes of name, 4 of type, 1 of value; the shortest tensor has more.
    n = cursor.count(field, 14)
    if n > limit:
        raise cursor.error(f"{n}; expected at most {limit}", field, offset=start, hint=DAMAGED)
    return n


def _read_metadata(cursor: Cursor, n: int, entries: dict[str, slice]) -> Metadata:
    values: dict[str, Any] = {}
    types: dict[str, ValueType] = {}
    scalars = {t: struct.Struct(cursor.order + t.code).unpack for t in ValueType if t.code}
    for i in range(n):
        start = cursor.pos
        key = cursor.text(f"name of key {i}", MAX_NAME_BYTES)
        field = f"key {quoted(key)}"
        if key in values:
            raise cursor.error("a second key of this name", field, offset=start, hint=DAMAGED)
        kind = cursor.value_type(f"{field}, type")
        types[key] = kind
        if kind is ValueType.ARRAY:
            values[key] = read_array(cursor, key)
        elif kind is ValueType.STRING:
            values[key] = _read_string(cursor, key)
        else:
            cursor.need(kind.nbytes, field)
            end = cursor.pos + kind.nbytes
            value = scalars[kind](cursor.data[cursor.pos : end].tobytes())[0]
            values[key] = bool(value) if kind is ValueType.BOOL else value
            cursor.pos = end
        entries[key] = slice(start, cursor.pos)
    return Metadata(values, types, cursor.file.path)


def _read_string(cursor: Cursor, key: str) -> str | LongString:
    n = cursor.count(f"key {quoted(key)}, length", 1)
    pos = cursor.pos
    cursor.pos += n
    if n > LAZY_STRING_BYTES:
        return LongString(cursor.file, key, pos, n)
    return decode_text(cursor.data[pos : pos + n].tobytes(), cursor.file, key, pos)


def _dtype(cursor: Cursor, field: str) -> DType:
    start = cursor.pos
    number = cursor.u32(field)
    try:
        return DType.from_id(number)
    except DTypeError as e:
        message, hint = e.message, e.hint
    if number in REMOVED_TYPES:
        message = f"type number {number} is {REMOVED_TYPES[number]}"
        hint = "get the model in a current type, or quantize it again"
    elif number > 1000:  # no version will use such a number soon: the file is damaged, not new
        hint = DAMAGED
    raise cursor.error(message, field, offset=start, hint=hint)


def _check_overlap(cursor: Cursor, tensors: dict[str, TensorInfo]) -> None:
    """Raise ModelFileError if tensors overlap.

    llama.cpp requires tensors one after the other in table order; the specification only requires each one to be
    aligned.
    """
    end, before = 0, ""
    for t in sorted(tensors.values(), key=lambda t: t.offset):
        if t.nbytes and t.offset < end:
            raise cursor.error(
                f"the tensor's data overlaps that of {quoted(before)}, which ends at byte {end}",
                f"tensor {quoted(t.name)}",
                offset=t.offset,
                hint=DAMAGED,
            )
        if t.offset + t.nbytes > end:
            end, before = t.offset + t.nbytes, t.name
