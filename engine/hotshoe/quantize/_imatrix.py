"""Importance matrices: how much an error in each column of a weight matters, as llama.cpp's files hold it.

What is kept of a weight's inputs is, of each column, the sum of their squares over all rows, and how many rows there
were; of experts, for each expert apart. Two formats: GGUF, which is written, and the older one (".dat"), which is only
read. Source of both: tools/imatrix and common/imatrix-loader.cpp of llama.cpp.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hotshoe.atomic_file import atomic_write
from hotshoe.quantize._gguf import Row, head, padding, string_entry, strings_entry, u32_entry
from hotshoe_core.errors import ModelFileError
from hotshoe_core.errors.arguments import described
from hotshoe_core.gguf import GGUFArray, GGUFFile
from hotshoe_core.tensors.dtypes import DType

__all__ = ["Importance", "ImportanceMatrix"]

Array = np.ndarray[Any, Any]

_SUMS, _COUNTS = ".in_sum2", ".counts"
_ALIGNMENT = 32
_MAKE = "make one: hotshoe imatrix MODEL.gguf --text TEXT.txt -o imatrix.gguf"


class Importance(NamedTuple):
    """Of one weight: sums of squares, float32 (matrices, columns), and rows seen, float32 (matrices,).

    An older file does not say how many matrices there are: all sums are one row then, of one count.
    """

    sums: Array
    counts: Array

    @property
    def mean(self) -> Array:
        """Mean of squares, float32, flat. An expert that no row came to counts all columns alike."""
        counts = self.counts[:, None]
        with np.errstate(all="ignore"):
            return np.where(counts > 0, self.sums / counts, np.float32(1)).astype(np.float32).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class ImportanceMatrix:
    """One Importance for each weight, by its name. datasets: the texts it was made from; a chunk is some tokens."""

    weights: Mapping[str, Importance]
    datasets: tuple[str, ...] = ()
    n_chunks: int = 0
    chunk_size: int = 0
    path: Path | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ImportanceMatrix:
        """Either format. Raises ModelFileError for a file that is neither, is damaged, or holds what is no number."""
        if not isinstance(path, (str, os.PathLike)):
            raise ModelFileError(f"the path of an importance matrix is {described(path)}; expected a str or a Path")
        path = Path(path).expanduser()
        try:
            with open(path, "rb") as file:
                magic = file.read(4)
                raw = b"" if magic == b"GGUF" else magic + file.read()
        except OSError as error:
            raise ModelFileError(f"cannot be read: {error.strerror or error}", path=path, hint=_MAKE) from None
        found = _read_gguf(path) if magic == b"GGUF" else _Older(path, raw).read()
        for name, weight in found.weights.items():
            if not (np.isfinite(weight.sums).all() and np.isfinite(weight.counts).all() and (weight.sums >= 0).all()):
                raise ModelFileError("sums of squares are negative or no numbers", path=path, field=name, hint=_MAKE)
        return found

    def write(self, target: Path) -> None:
        """As llama.cpp writes it: the same keys, names in order, shapes without leading ones.

        Raises ConversionError if the file cannot be written.
        """
        rows: list[Row] = []
        arrays: list[Array] = []
        for name in sorted(self.weights, key=str.encode):
            sums, counts = self.weights[name]
            rows += [
                Row(name + _SUMS, sums.shape[sums.shape[0] == 1 :], DType.F32),
                Row(name + _COUNTS, (len(counts), 1)[len(counts) == 1 :], DType.F32),
            ]
            arrays += [sums, counts]
        entries = [
            string_entry("general.type", "imatrix"),
            strings_entry("imatrix.datasets", self.datasets),
            u32_entry("imatrix.chunk_count", self.n_chunks),
            u32_entry("imatrix.chunk_size", self.chunk_size),
        ]
        with atomic_write(target) as part, open(part, "wb") as file:
            file.write(head(entries, rows, _ALIGNMENT))
            for row, array in zip(rows, arrays, strict=True):
                file.write(np.ascontiguousarray(array, "<f4").tobytes())
                file.write(bytes(padding(row.nbytes, _ALIGNMENT)))


def _read_gguf(path: Path) -> ImportanceMatrix:
    with GGUFFile(path) as file:
        names = [name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)]
        if not names:
            what = file.metadata.get("general.type", None, str) or "model"
            raise ModelFileError(f"this is a {what}, and holds no importance matrix", path=path, hint=_MAKE)
        weights = {}
        for name in names:
            sums, counts = _floats(file, name + _SUMS), _floats(file, name + _COUNTS)
            if not counts.size or not sums.size or sums.size % counts.size:
                raise ModelFileError(
                    f"{sums.size} sums and {counts.size} counts; expected as many sums for each count",
                    path=path,
                    field=name,
                    hint=_MAKE,
                )
            weights[name] = Importance(sums.reshape(counts.size, -1), counts)
        datasets = file.metadata.get("imatrix.datasets", None, GGUFArray)
        return ImportanceMatrix(
            weights,
            () if datasets is None else tuple(map(str, datasets)),
            file.metadata.get("imatrix.chunk_count", 0),
            file.metadata.get("imatrix.chunk_size", 0),
            path,
        )


def _floats(file: GGUFFile, name: str) -> Array:
    """A copy: the file is closed soon."""
    info = file.tensors.get(name)
    if info is None or info.dtype is not DType.F32:
        found = "there is none" if info is None else f"it is {info.dtype.name}"
        raise ModelFileError(f"expected a tensor of F32; {found}", path=file.path, field=name, hint=_MAKE)
    return file.array(name).reshape(-1).astype(np.float32)


class _Older:
    """A position in a file of the older format, which has no magic number: every length is checked."""

    def __init__(self, path: Path, raw: bytes) -> None:
        self._path = path
        self._raw = raw
        self._pos = 0

    def read(self) -> ImportanceMatrix:
        weights = {}
        n = self._number("number of entries")
        if not 1 <= n <= len(self._raw):
            raise self._error(f"it would begin with {n} entries")
        for i in range(n):
            name = self._text(f"entry {i}")
            n_calls = self._number(name)
            sums = np.frombuffer(self._take(4 * self._number(name), name), "<f4").astype(np.float32)
            if not sums.size:
                raise self._error(f"entry {name!r:.80} has no values")
            weights[name] = Importance(sums[None], np.array([max(n_calls, 1)], np.float32))
        n_chunks, datasets = 0, []
        if self._pos < len(self._raw):  # newer ones of this format end with this
            n_chunks = self._number("number of chunks")
        if self._pos < len(self._raw):
            datasets.append(self._text("data set"))
        return ImportanceMatrix(weights, tuple(datasets), max(0, n_chunks), path=self._path)

    def _number(self, what: str) -> int:
        return int(struct.unpack("<i", self._take(4, what))[0])

    def _text(self, what: str) -> str:
        return self._take(self._number(what), what).decode("utf-8", "replace")

    def _take(self, n: int, what: str) -> bytes:
        if not 0 <= n <= len(self._raw) - self._pos:
            raise self._error(f"{what:.80} would have {n} bytes, and {len(self._raw) - self._pos} are left")
        self._pos += n
        return self._raw[self._pos - n : self._pos]

    def _error(self, message: str) -> ModelFileError:
        return ModelFileError(
            f"this is no importance matrix: it is no GGUF file, and read as the older format (.dat), {message}",
            path=self._path,
            offset=self._pos,
            hint=_MAKE,
        )
