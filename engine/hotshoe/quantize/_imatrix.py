"""Importance matrices: how much an error in each column of a weight matters, in the file formats of llama.cpp.

For each column of a weight, a file stores the sum of the squared inputs over all rows, and the number of rows; for
experts, separately for each expert. hotshoe writes the GGUF format, and also reads the older format (".dat").
Source of both: tools/imatrix and common/imatrix-loader.cpp of llama.cpp.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hotshoe.atomic_file import atomic_write, check_target
from hotshoe.quantize._gguf import Row, head, padding, string_entry, strings_entry, u32_entry
from hotshoe_core.errors import ModelFileError
from hotshoe_core.errors.arguments import file_path, regular
from hotshoe_core.gguf import GGUFArray, GGUFFile
from hotshoe_core.tensors.dtypes import DType

__all__ = ["Importance", "ImportanceMatrix"]

Array = np.ndarray[Any, Any]

_SUMS, _COUNTS = ".in_sum2", ".counts"
_ALIGNMENT = 32
_MAKE = "make one: hotshoe imatrix MODEL.gguf --text TEXT.txt -o imatrix.gguf"


class Importance(NamedTuple):
    """The importance of the columns of one weight.

    The older format does not store the number of matrices; all sums are then in one row, with one count.
    """

    sums: Array
    """Sums of squared inputs: float32 (matrices, columns)."""
    counts: Array
    """The number of rows that were summed: float32 (matrices,)."""

    @property
    def mean(self) -> Array:
        """The mean of squares, float32, flat. It is 1 for all columns of an expert that no row used."""
        counts = self.counts[:, None]
        with np.errstate(all="ignore"):
            return np.where(counts > 0, self.sums / counts, np.float32(1)).astype(np.float32).reshape(-1)


@dataclass(frozen=True, slots=True, eq=False)
class ImportanceMatrix:
    """How much each column of each weight matters. Make one with ``collect_importance``, or ``read`` a file."""

    weights: Mapping[str, Importance]
    """The importance of each weight, by its name in the model's file."""
    datasets: tuple[str, ...] = ()
    """The names of the texts that it was made from."""
    n_chunks: int = 0
    chunk_size: int = 0
    """Tokens of a chunk."""
    path: Path | None = None
    """The file that it was read from."""

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> ImportanceMatrix:
        """Read a file in either format.

        Raises ModelFileError if the file is in neither format, is damaged, or holds values that are not numbers.
        """
        path = file_path("the path of an importance matrix", path, ModelFileError)
        try:
            with open(regular(path), "rb") as file:
                magic = file.read(4)
                raw = b"" if magic == b"GGUF" else magic + file.read()
        except OSError as error:
            raise ModelFileError(f"cannot be read: {error.strerror or error}", path=path, hint=_MAKE) from None
        found = _read_gguf(path) if magic == b"GGUF" else _DatReader(path, raw).read()
        for name, weight in found.weights.items():
            if not (np.isfinite(weight.sums).all() and np.isfinite(weight.counts).all() and (weight.sums >= 0).all()):
                raise ModelFileError("sums of squares are negative or not numbers", path=path, field=name, hint=_MAKE)
        return found

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a GGUF file, as llama.cpp does: the same keys, sorted names, shapes without leading ones.

        Replaces a file of that name. Raises ConversionError if the file cannot be written.
        """
        target = check_target(path, True, example="imatrix.gguf")
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
            raise ModelFileError(f"this is a {what}, not an importance matrix", path=path, hint=_MAKE)
        weights = {}
        for name in names:
            sums, counts = _floats(file, name + _SUMS), _floats(file, name + _COUNTS)
            if not counts.size or not sums.size or sums.size % counts.size:
                raise ModelFileError(
                    f"{sums.size} sums and {counts.size} counts; expected the same number of sums for each count",
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
    """A copy of a tensor, flat, because the file will be closed."""
    info = file.tensors.get(name)
    if info is None or info.dtype is not DType.F32:
        found = "missing" if info is None else info.dtype.name
        raise ModelFileError(f"the tensor is {found}; expected F32", path=file.path, field=name, hint=_MAKE)
    return file.array(name).reshape(-1).astype(np.float32)


class _DatReader:
    """Reads the older format (".dat"). It has no magic number, so every length is checked."""

    def __init__(self, path: Path, raw: bytes) -> None:
        self._path = path
        self._raw = raw
        self._pos = 0

    def read(self) -> ImportanceMatrix:
        weights = {}
        n = self._number("number of entries")
        if not 1 <= n <= len(self._raw):
            raise self._error(f"it would have {n} entries")
        for i in range(n):
            name = self._text(f"entry {i}")
            n_calls = self._number(name)
            sums = np.frombuffer(self._take(4 * self._number(name), name), "<f4").astype(np.float32)
            if not sums.size:
                raise self._error(f"entry {name!r:.80} has no values")
            weights[name] = Importance(sums[None], np.array([max(n_calls, 1)], np.float32))
        n_chunks, datasets = 0, []
        if self._pos < len(self._raw):  # only newer files of this format have the rest
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
            raise self._error(f"{what:.80} would have {n} bytes, but {len(self._raw) - self._pos} are left")
        self._pos += n
        return self._raw[self._pos - n : self._pos]

    def _error(self, message: str) -> ModelFileError:
        return ModelFileError(
            f"this is not an importance matrix: it is not a GGUF file, and in the older format (.dat) {message}",
            path=self._path,
            offset=self._pos,
            hint=_MAKE,
        )
