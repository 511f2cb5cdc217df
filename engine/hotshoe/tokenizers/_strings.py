"""StringTable and TokenIds: all tokens or merges of a vocabulary in one array of bytes, found by their hashes.

A vocabulary has up to 260,000 tokens and 510,000 merges. As Python strings and dictionaries they take 0.1 to 0.5 s to
make, and the first token of a text would wait for that, though a short text needs a few hundred of them. Here NumPy
hashes all of them at once, and a string is made when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final, overload

import numpy as np
import numpy.typing as npt

from hotshoe_core.gguf import GGUFArray, decode_strings

__all__ = ["Characters", "StringTable", "TokenIds"]

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_GAP = 8  # NUL bytes before each string, as in GGUFArray.packed, and after the last one
_HASHED = 512  # bytes of a string that its hash depends on, besides its length
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MASKS = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)  # keeps the first n bytes of eight


class Characters(NamedTuple):
    """The characters of a table. String i is ``codes[starts[i] : starts[i] + lengths[i]]``; there are NULs between."""

    codes: npt.NDArray[np.uint32]
    starts: Integers
    lengths: Integers


@final
class StringTable(Sequence[str]):
    """Strings in one array of bytes. Each is decoded when it is used. Immutable."""

    __slots__ = ("_bounds", "_data", "_index", "_lengths", "_starts")

    def __init__(self, strings: Iterable[str]) -> None:
        """strings: may be a GGUFArray, whose strings are not decoded then.

        Raises ModelFileError if a string of a GGUFArray is not valid UTF-8.
        """
        if isinstance(strings, GGUFArray):
            data, self._bounds = strings.packed()
        else:
            data, self._bounds = _packed([s.encode() for s in strings])
        self._data, self._starts, self._lengths = _parts(data, self._bounds)
        self._index: _Index | None = None

    def __len__(self) -> int:
        return self._starts.size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._raw(index).decode()

    def __iter__(self) -> Iterator[str]:
        return iter(decode_strings(self._data[:-_GAP], self._bounds))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (StringTable, list, tuple)):
            return len(self) == len(other) and list(self) == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # it is equal to lists, which have no hash

    def __repr__(self) -> str:
        return f"<StringTable of {len(self)}>"

    def find(self, strings: Sequence[str]) -> dict[str, int]:
        """Map each of ``strings`` that is in the table to its index, or to its last index if the table repeats it."""
        index = self._indexed()
        encoded = [s.encode(errors="surrogatepass") for s in strings]
        found: dict[str, int] = {}
        for i, place in enumerate(index.find(_hashes(*_parts(*_packed(encoded)))).tolist()):
            if place >= 0:
                if strings[i] in index.shared:
                    found[strings[i]] = index.shared[strings[i]]
                elif self._raw(place) == encoded[i]:
                    found[strings[i]] = place
        return found

    def starting_with(self, letter: str) -> list[int]:
        """The indices of the strings that start with a character, in order."""
        prefix = np.frombuffer(letter.encode(), np.uint8)
        at = self._starts[:, None] + np.arange(prefix.size)
        starts = (self._lengths >= prefix.size) & (self._data[at] == prefix).all(axis=1)
        return np.flatnonzero(starts).tolist()

    def n_characters(self) -> Integers:
        """The number of characters of each string."""
        before = self._characters_before()
        lengths: Integers = before[self._starts + self._lengths] - before[self._starts]
        return lengths

    def characters(self) -> Characters:
        """All characters, and where each string is among them."""
        codes = np.frombuffer(self._data.tobytes().decode().encode("utf-32-le"), "<u4")
        return Characters(codes, self._characters_before()[self._starts] - 1, self.n_characters())

    def _characters_before(self) -> Integers:
        """For each byte, the number of characters that begin at it or before it."""
        return np.cumsum((self._data & 0xC0) != 0x80)

    def repeated(self) -> tuple[int, int] | None:
        """Two indices of equal strings, the smaller one first; None if all strings differ."""
        return self._indexed().repeated

    def unknown_joins(self, tokens: StringTable) -> bool:
        """Whether a string is not "a b", with one space, or ``tokens`` may lack "ab".

        Only hashes are compared, so it misses a token that is lacking if another one has the same hash.
        """
        spaces = np.flatnonzero(self._data == ord(" "))
        if spaces.size != len(self) or np.any(self._lengths > _HASHED):
            return True
        if not (np.all(spaces >= self._starts) and np.all(spaces < self._starts + self._lengths)):
            return True
        data = np.delete(self._data, spaces)
        made = _hashes(data, self._starts - np.arange(len(self)), self._lengths - 1)
        return bool(np.any(tokens._indexed().find(made) < 0))

    def _raw(self, index: int) -> bytes:
        start = self._starts[index]
        return self._data[start : start + self._lengths[index]].tobytes()

    def _indexed(self) -> _Index:
        if self._index is None:  # two threads may both make it: the results are equal
            self._index = _Index(_hashes(self._data, self._starts, self._lengths), self)
        return self._index


class _Index:
    """Finds the index of a hash. Holds up to 2**31 hashes, of ``strings``."""

    def __init__(self, hashes: Hashes, strings: StringTable) -> None:
        bits = max(1, (4 * hashes.size).bit_length())
        self._hashes = hashes
        self._shift = np.uint64(64 - bits)
        # The first bits of a hash choose its place. If several hashes choose one, the others are in a sorted rest.
        self._places = np.full(1 << bits, -1, np.int32)
        at = self._at(hashes)
        self._places[at] = np.arange(hashes.size, dtype=np.int32)
        taken = self._places[at]
        rest = np.flatnonzero(taken != np.arange(hashes.size))
        self._rest = rest[np.argsort(hashes[rest])]
        self._sorted = hashes[self._rest]
        same = hashes[taken[rest]] == hashes[rest]
        again = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        alike = np.concatenate([rest[same], taken[rest[same]], self._rest[again], self._rest[again + 1]])
        self.shared: dict[str, int] = {}
        """The strings whose hash is also that of another index; of equal strings the last index."""
        self.repeated: tuple[int, int] | None = None
        """Two indices of equal strings."""
        for i in sorted(set(alike.tolist())):  # np.unique would import numpy.ma, which takes 15 ms
            string = strings[i]
            if self.repeated is None and string in self.shared:
                self.repeated = self.shared[string], i
            self.shared[string] = i

    def find(self, wanted: Hashes) -> Integers:
        """The index of each hash; -1 if it is not here. Of several indices of one hash, any."""
        found: Integers = self._places[self._at(wanted)].astype(np.int64)
        if not self._hashes.size:
            return found
        other = np.flatnonzero((found >= 0) & (self._hashes[found] != wanted))
        found[other] = -1
        if self._rest.size:
            places = np.minimum(np.searchsorted(self._sorted, wanted[other]), self._rest.size - 1)
            right = self._sorted[places] == wanted[other]
            found[other[right]] = self._rest[places[right]]
        return found

    def _at(self, hashes: Hashes) -> Integers:
        return (hashes >> self._shift).astype(np.int64)


@final
class TokenIds(Mapping[str, int]):
    """The ids of the tokens of a table, and of further names."""

    def __init__(self, tokens: StringTable, names: Mapping[str, int] | None = None) -> None:
        """names: further names of tokens, with their ids. A name hides a token with the same spelling."""
        self._tokens = tokens
        self._names = dict(names or {})

    def find(self, tokens: Sequence[str]) -> dict[str, int]:
        """Those of ``tokens`` that have an id, and their ids: much faster than one by one."""
        found = self._tokens.find(tokens)
        if self._names:
            found |= {token: self._names[token] for token in tokens if token in self._names}
        return found

    def all(self) -> dict[str, int]:
        """All names and their ids."""
        return dict(zip(self._tokens, range(len(self._tokens)))) | self._names

    def __getitem__(self, token: str) -> int:
        return self.find([token])[token]

    def __iter__(self) -> Iterator[str]:
        return iter(self.all())

    def __len__(self) -> int:
        return len(self._tokens) + len(self._names) - len(self._tokens.find(list(self._names)))


def _packed(encoded: list[bytes]) -> tuple[Bytes, Integers]:
    """The same as ``GGUFArray.packed``."""
    gap = bytes(_GAP)
    data = np.frombuffer(gap + gap.join(encoded) if encoded else b"", np.uint8)
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded)) + _GAP
    return data, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _parts(data: Bytes, bounds: Integers) -> tuple[Bytes, Integers, Integers]:
    """The bytes with a gap at the end too, and where each string starts, and its length."""
    return np.concatenate([data, np.zeros(_GAP, np.uint8)]), bounds[:-1] + _GAP, np.diff(bounds) - _GAP


def _hashes(data: Bytes, starts: Integers, lengths: Integers) -> Hashes:
    """A hash of each string: of its length and its first bytes. At least 8 bytes follow the last string."""
    eights: npt.NDArray[Any] = np.ndarray((data.size - 7,), "<u8", buffer=data, strides=(1,))  # one at every byte
    hashes = lengths.astype(np.uint64)
    lengths = np.minimum(lengths, _HASHED)
    some: Any = slice(None)  # all in the first round, later those that are longer
    done = 0
    while done == 0 or some.size:
        left = lengths[some] - done
        mixed = (hashes[some] ^ (eights[starts[some] + done] & _MASKS[np.minimum(left, 8)])) * _MULTIPLIER
        hashes[some] = mixed ^ (mixed >> np.uint64(32))
        some = np.flatnonzero(left > 8) if done == 0 else some[left > 8]
        done += 8
    return hashes
