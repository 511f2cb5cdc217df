"""Cursor: a position in a mapped file that cannot leave the file.

Every read compares the bytes it needs with the bytes that are left, before it reads or allocates anything.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import final

import numpy as np
import numpy.typing as npt

from hotshoe_core.errors import ModelFileError
from hotshoe_core.gguf._format import DAMAGED, MAX_ITEMS, VALUE_TYPES, ValueType
from hotshoe_core.gguf._mapping import Bytes, MappedFile

__all__ = ["Cursor", "cut_strings", "decode_strings", "split_strings"]

Starts = npt.NDArray[np.int64]

_WINDOW = 1 << 15  # bytes examined at once; the temporaries stay in the L1 and L2 caches


@final
class Cursor:
    """A position in a mapped file. Its methods read values and move it; they raise ModelFileError at the file's end."""

    __slots__ = ("_items", "_raw", "_u32", "_u64", "data", "file", "order", "pos", "size")

    def __init__(self, file: MappedFile, pos: int, *, big_endian: bool = False) -> None:
        self.file = file
        self.data = file.view
        self._raw = self.data.data  # struct reads it in 60% of the time that it needs for an array
        self.size = file.size
        self.pos = pos
        self.order = ">" if big_endian else "<"
        self._u32 = struct.Struct(f"{self.order}I").unpack_from
        self._u64 = struct.Struct(f"{self.order}Q").unpack_from
        self._items = MAX_ITEMS

    def error(self, message: str, field: str, *, offset: int | None = None, hint: str | None = None) -> ModelFileError:
        """A ModelFileError at a byte offset, by default the current position. The caller raises it."""
        offset = self.pos if offset is None else offset
        return ModelFileError(message, path=self.file.path, field=field, offset=offset, hint=hint)

    def need(self, n: int, field: str) -> None:
        left = self.size - self.pos
        if n > left:
            raise self.error(f"{n} bytes are needed here, but the file ends after {left}", field, hint=DAMAGED)

    def u32(self, field: str) -> int:
        self.need(4, field)
        value: int = self._u32(self._raw, self.pos)[0]
        self.pos += 4
        return value

    def u64(self, field: str) -> int:
        self.need(8, field)
        value: int = self._u64(self._raw, self.pos)[0]
        self.pos += 8
        return value

    def count(self, field: str, item_bytes: int) -> int:
        """Read a number of items. Raises ModelFileError if the rest of the file cannot hold that many."""
        n = self.u64(field)
        left = self.size - self.pos
        if n * item_bytes > left:
            what = f"{n} bytes" if item_bytes == 1 else f"{n} items of at least {item_bytes} bytes each"
            message = f"{what} cannot fit in the {left} bytes that are left"
            raise self.error(message, field, offset=self.pos - 8, hint=DAMAGED)
        return n

    def value_type(self, field: str) -> ValueType:
        start = self.pos
        number = self.u32(field)
        if number not in VALUE_TYPES:
            message = f"{number} is not a value type; expected 0 to {max(VALUE_TYPES)}"
            raise self.error(message, field, offset=start, hint=DAMAGED)
        return VALUE_TYPES[number]

    def text(self, field: str, limit: int) -> str:
        """Read a name: a length-prefixed UTF-8 string of 1 to ``limit`` bytes."""
        start = self.pos
        n = self.count(f"length of {field}", 1)
        if not 0 < n <= limit:
            raise self.error(f"a name of {n} bytes; expected 1 to {limit}", field, offset=start, hint=DAMAGED)
        raw = self.data[self.pos : self.pos + n].tobytes()
        self.pos += n
        try:
            return raw.decode()
        except UnicodeDecodeError as e:
            message = f"{raw[:60]!r} is not valid UTF-8 ({e.reason})"
            raise self.error(message, field, offset=start + 8 + e.start, hint=DAMAGED) from None

    def spend(self, n: int, field: str) -> None:
        """Count work whose amount a file can claim freely. Raises ModelFileError above MAX_ITEMS."""
        self._items -= n
        if self._items < 0:
            raise self.error(f"the metadata arrays have more than {MAX_ITEMS} strings or nested arrays", field)

    def skip_strings(self, n: int, field: str, starts: list[Starts] | None = None) -> None:
        """Skip ``n`` length-prefixed strings. If ``starts`` is given, append the positions of the prefixes to it.

        A vocabulary of 150,000 strings makes opening a file slow, and a loop over them is serial: each length gives the
        position of the next string. But the length of a short string is a byte followed by seven zeros, which text does
        not contain, so NumPy can guess all prefixes of a window at once. A guess counts only if prefix i plus length i
        equals prefix i + 1, so the result is that of the loop for any bytes.
        """
        left = n
        little = self.order == "<"
        patience = 8 if little else 1 << 16
        while left:
            if little:
                run = self._run(left)
                if run.size:
                    if starts is not None:
                        starts.append(run)
                    left -= run.size
                    self.pos = int(run[-1])
                    self._step(1, field, n - left - 1, None)
                # If guessing gains little (empty or long strings), it is tried less and less often.
                patience = 8 if run.size >= 256 else min(2 * patience, 1 << 16)
            steps = min(left, patience)
            self._step(steps, field, n - left, starts)
            left -= steps

    def _run(self, most: int) -> Starts:
        """The next prefixes that their neighbours prove, at most ``most``."""
        window = self.data[self.pos : self.pos + _WINDOW]
        n_lengths = window.size - 7
        if n_lengths < 1:
            return np.empty(0, np.int64)
        zero = window == 0
        guess = np.flatnonzero(zero[1:] > zero[:-1])  # a byte that is not zero, before a zero byte
        guess = guess[: np.searchsorted(guess, n_lengths)]
        if not guess.size or guess[0]:
            return np.empty(0, np.int64)
        lengths = np.ndarray((n_lengths,), "<i8", buffer=window, strides=(1,))  # one at every byte
        after = guess + 8 + lengths[guess]
        proven = after[:-1] == guess[1:]
        n = guess.size if proven.all() else int(proven.argmin()) + 1
        return guess[: min(n, most)] + self.pos

    def _step(self, n: int, field: str, index: int, starts: list[Starts] | None) -> None:
        """Skip ``n`` strings one by one; ``index`` is the number of the first."""
        pos, size, data, u64 = self.pos, self.size, self._raw, self._u64
        seen: list[int] = []
        for i in range(n):
            seen.append(pos)
            end = pos + 8
            if end <= size:
                end += u64(data, pos)[0]
            if end > size:
                self.pos = pos
                what = f"a string of {end - pos - 8} bytes" if pos + 8 <= size else "the length of a string"
                message = f"{what} starts here, but the file ends after {size - pos} bytes"
                raise self.error(message, f"{field}[{index + i}]", hint=DAMAGED)
            pos = end
        self.pos = pos
        if starts is not None:
            starts.append(np.array(seen, np.int64))


def split_strings(file: MappedFile, pos: int, n: int, field: str, *, big_endian: bool) -> tuple[Bytes, Starts]:
    """A copy of ``n`` strings with eight NUL bytes before each, and ``bounds``.

    String i is ``[bounds[i] + 8 : bounds[i + 1]]``.
    """
    cursor = Cursor(file, pos, big_endian=big_endian)
    starts: list[Starts] = []
    cursor.skip_strings(n, field, starts)
    starts.append(np.array([cursor.pos], np.int64))
    data, bounds = cursor.data[pos : cursor.pos].copy(), np.concatenate(starts) - pos
    longest = int(np.diff(bounds).max(initial=8)) - 8
    for i in range((longest.bit_length() + 7) // 8):  # the other bytes of the lengths are zero already
        data[bounds[:-1] + (7 - i if big_endian else i)] = 0
    return data, bounds


def decode_strings(data: Bytes, bounds: Starts) -> list[str]:
    """Decode all strings from ``GGUFArray.packed``: much faster than one by one. Raises UnicodeDecodeError."""
    joined, n = data.tobytes(), bounds.size - 1
    if joined.count(0) == 8 * n:
        return joined.decode().split("\0" * 8)[1:]  # two calls for all of them
    return [raw.decode() for raw in cut_strings(data, bounds)]  # a string contains a NUL


def cut_strings(data: Bytes, bounds: Starts) -> list[bytes]:
    """The bytes of each string from ``split_strings``."""
    raw = data.tobytes()
    return [raw[a + 8 : b] for a, b in pairwise(bounds.tolist())]
