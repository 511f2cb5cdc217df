"""Metadata values that are decoded only when they are used: arrays and long strings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, final, overload

import numpy as np
import numpy.typing as npt

from hotshoe_core.errors import DTypeError, ModelFileError
from hotshoe_core.gguf._cursor import Cursor, cut_strings, decode_strings, split_strings
from hotshoe_core.gguf._format import MAX_DEPTH, ValueType, quoted
from hotshoe_core.gguf._mapping import Bytes, MappedFile

__all__ = ["GGUFArray", "LongString", "decode_text", "read_array"]


@final
class GGUFArray(Sequence[Any]):
    """An array in the metadata. Its length and type are known; other than numbers, items are decoded at first use.

    The first use raises ModelFileError if a string is not valid UTF-8 (``raw`` still reads it), and ClosedError if the
    file is closed.
    """

    __slots__ = ("_big_endian", "_count", "_file", "_items", "_key", "_pos", "type")

    def __init__(
        self, file: MappedFile, key: str, type: ValueType, pos: int, count: int, *, big_endian: bool = False
    ) -> None:
        self.type = type
        self._file = file
        self._key = key
        self._pos = pos
        self._count = count
        self._big_endian = big_endian
        self._items: tuple[Any, ...] | None = None  # a tuple of strings costs the garbage collector nothing

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if self.type.code:
            part = self.numpy()[index]
            return part.tolist()  # a single number becomes a Python scalar
        items = self._decoded()
        return list(items[index]) if isinstance(index, slice) else items[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.numpy().tolist() if self.type.code else self._decoded())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (list, tuple, GGUFArray)):
            return len(self) == len(other) and self.tolist() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it is equal to lists, which have no hash

    def __repr__(self) -> str:
        return f"<GGUFArray of {self._count} {self.type.label}>"

    def tolist(self) -> list[Any]:
        """A list of Python numbers, strings or, for a nested array, lists."""
        if self.type is ValueType.ARRAY:
            return [a.tolist() for a in self._decoded()]
        return list(self)

    def first(self, n: int) -> GGUFArray:
        """The first ``n`` items, or all if there are fewer."""
        n = min(n, self._count)
        return GGUFArray(self._file, self._key, self.type, self._pos, n, big_endian=self._big_endian)

    def numpy(self) -> npt.NDArray[Any]:
        """A read-only view of the file, no copy (except for bool). Raises DTypeError for strings and nested arrays."""
        if not self.type.code:
            raise DTypeError(
                f"{quoted(self._key)} is an array of {self.type.label}; expected numbers or bools", hint="use tolist()"
            )
        dtype = np.dtype(self.type.code).newbyteorder(">" if self._big_endian else "<")
        part: npt.NDArray[Any]
        part = self._file.view[self._pos : self._pos + self._count * self.type.nbytes].view(dtype)
        if self.type is not ValueType.BOOL:
            return part
        truth: npt.NDArray[Any] = part != 0
        truth.flags.writeable = False
        return truth

    def raw(self) -> list[bytes]:
        """The bytes of each string, valid UTF-8 or not. Raises DTypeError if this is not an array of strings."""
        self._require_strings()
        return cut_strings(*self._split())

    def packed(self) -> tuple[Bytes, npt.NDArray[np.int64]]:
        """All strings in one array of bytes, a copy, for readers that need few of them: ``(data, bounds)``.

        String i is ``data[bounds[i] + 8 : bounds[i + 1]]``; eight NUL bytes are before it. Raises DTypeError if this is
        not an array of strings, ModelFileError if one is not valid UTF-8.
        """
        self._require_strings()
        data, bounds = self._split()
        try:
            data.tobytes().decode()
        except UnicodeDecodeError:
            self._refuse_invalid(data, bounds)
        return data, bounds

    def _require_strings(self) -> None:
        if self.type is not ValueType.STRING:
            raise DTypeError(f"{quoted(self._key)} is an array of {self.type.label}; expected strings")

    def _split(self) -> tuple[Bytes, npt.NDArray[np.int64]]:
        return split_strings(self._file, self._pos, self._count, self._key, big_endian=self._big_endian)

    def _decoded(self) -> tuple[Any, ...]:
        # Two threads may both decode: the results are equal, and the later one is kept.
        items = self._items
        if items is None:
            items = self._strings() if self.type is ValueType.STRING else self._arrays()
            self._items = items
        return items

    def _strings(self) -> tuple[str, ...]:
        data, bounds = self._split()
        try:
            return tuple(decode_strings(data, bounds))
        except UnicodeDecodeError:
            self._refuse_invalid(data, bounds)

    def _refuse_invalid(self, data: Bytes, bounds: npt.NDArray[np.int64]) -> NoReturn:
        for i, raw in enumerate(cut_strings(data, bounds)):
            try:
                raw.decode()
            except UnicodeDecodeError as e:
                raise ModelFileError(
                    f"{raw[:60]!r} is not valid UTF-8 ({e.reason})",
                    path=self._file.path,
                    field=f"key {quoted(self._key)}[{i}]",
                    offset=self._pos + int(bounds[i]) + 8 + e.start,
                    hint="raw() gives the bytes of each string",
                ) from None
        raise AssertionError("every string is valid UTF-8")

    def _arrays(self) -> tuple[GGUFArray, ...]:
        cursor = Cursor(self._file, self._pos, big_endian=self._big_endian)
        return tuple(read_array(cursor, f"{self._key}[{i}]") for i in range(self._count))


@final
class LongString:
    """A long string, decoded only when it is used."""

    __slots__ = ("_file", "_key", "_pos", "nbytes")

    def __init__(self, file: MappedFile, key: str, pos: int, nbytes: int) -> None:
        self._file = file
        self._key = key
        self._pos = pos
        self.nbytes = nbytes

    def decode(self) -> str:
        """The text. Raises ModelFileError if it is not valid UTF-8."""
        raw = self._file.view[self._pos : self._pos + self.nbytes].tobytes()
        return decode_text(raw, self._file, self._key, self._pos)


def decode_text(raw: bytes, file: MappedFile, key: str, pos: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as e:
        near = raw[max(0, e.start - 20) : e.start + 20]
        raise ModelFileError(
            f"the text is not valid UTF-8 ({e.reason}) at {near!r}",
            path=file.path,
            field=f"key {quoted(key)}",
            offset=pos + e.start,
        ) from None


def read_array(cursor: Cursor, key: str, depth: int = 1) -> GGUFArray:
    """Read the array that starts at the cursor with its element type, and move the cursor past it."""
    field = f"key {quoted(key)}"
    start = cursor.pos
    kind = cursor.value_type(f"{field}, element type")
    n = cursor.count(f"{field}, number of items", kind.nbytes)
    pos = cursor.pos
    if kind.code:
        cursor.pos += n * kind.nbytes
    elif kind is ValueType.STRING:
        cursor.spend(n, field)
        cursor.skip_strings(n, field)
    else:
        if depth == MAX_DEPTH:
            raise cursor.error(f"arrays are nested more than {MAX_DEPTH} deep", field, offset=start)
        cursor.spend(16 * n, field)  # skipping an array takes about as long as skipping 16 strings
        for _ in range(n):
            read_array(cursor, key, depth + 1)
    return GGUFArray(cursor.file, key, kind, pos, n, big_endian=cursor.order == ">")
