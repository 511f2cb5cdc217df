"""GGUFFile: the GGUF file of a model, or all files of a split model as one."""

from __future__ import annotations

import difflib
import os
import re
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, final

import numpy.typing as npt

from hotshoe_core.errors import DTypeError, ModelFileError
from hotshoe_core.errors.arguments import file_path
from hotshoe_core.gguf._format import DAMAGED, quoted
from hotshoe_core.gguf._mapping import Bytes
from hotshoe_core.gguf._metadata import Metadata
from hotshoe_core.gguf._shard import Shard, TensorInfo

__all__ = ["GGUFFile"]

_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


@final
class GGUFFile:
    """A GGUF file, mapped read-only. Opening it reads the header and no tensor data.

    For a split model (``x-00001-of-00003.gguf``), pass any of the files: all are opened. ``metadata`` is that of the
    first file, and ``tensors`` has the tensors of all files, in order. (llama.cpp needs the first file.)

    Raises ModelFileError, with file, field and byte, if the file is invalid. Several threads may use it. After
    ``close``, arrays that were returned stay valid, and scalars and the tensor table can still be read; access to the
    file's contents raises ClosedError.
    """

    __slots__ = ("_shards", "alignment", "big_endian", "metadata", "path", "tensors", "version")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = file_path("the path of a GGUF file", path, ModelFileError)
        self._shards = _open_all(self.path)
        first = self._shards[0]
        self.version: int = first.version
        self.big_endian: bool = first.big_endian
        self.alignment: int = first.alignment
        self.metadata: Metadata = first.metadata
        self.tensors: dict[str, TensorInfo] = {}
        for shard in self._shards:
            self.tensors.update(shard.tensors)

    @property
    def architecture(self) -> str:
        """``general.architecture``. Raises ModelFileError if it is missing."""
        return self.metadata.architecture

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files, in the order of ``TensorInfo.shard``."""
        return tuple(s.file.path for s in self._shards)

    @property
    def nbytes(self) -> int:
        """The size of all files in bytes."""
        return sum(s.file.size for s in self._shards)

    def data(self, name: str) -> Bytes:
        """The tensor's bytes in the format of its DType: a one-dimensional read-only view of the mapping, no copy.

        Bytes that ``TensorInfo.made`` makes are a copy.
        Raises ModelFileError for an unknown name or a big-endian file, ClosedError after ``close``.
        """
        info = self._info(name)
        self._require_little_endian(self.paths[info.shard], f"tensor {quoted(name)}", "its blocks")
        return self._bytes(info)

    def entry(self, key: str) -> Bytes:
        """The bytes of a metadata entry: key, type and value. They can be copied unchanged to another file.

        Raises MetadataKeyError for an unknown key, ModelFileError for a big-endian file, ClosedError after ``close``.
        """
        first = self._shards[0]
        first.metadata.value_type(key)  # raises MetadataKeyError for an unknown key
        self._require_little_endian(first.file.path, f"key {quoted(key)}", "its metadata")
        return first.file.view[first.entries[key]]

    def _require_little_endian(self, path: Path, field: str, what: str) -> None:
        if self.big_endian:
            raise ModelFileError(
                f"the file is big-endian, and {what} can only be used in little-endian order",
                path=path,
                field=field,
                hint="convert it: gguf-convert-endian FILE little (from the gguf package)",
            )

    def changed(self, metadata: Metadata, tensors: dict[str, TensorInfo]) -> GGUFFile:
        """The same file with other metadata and other names of tensors. Nothing is copied; closing one closes both."""
        view = GGUFFile.__new__(GGUFFile)
        for name in GGUFFile.__slots__:
            setattr(view, name, getattr(self, name))
        view.metadata, view.tensors = metadata, tensors
        return view

    def array(self, name: str) -> npt.NDArray[Any]:
        """The tensor as a read-only array in its shape, no copy. Raises DTypeError for a type that NumPy lacks."""
        info = self._info(name)
        if info.dtype.numpy is None:
            raise DTypeError(
                f"tensor {quoted(name)} is {info.dtype.name}, a type that NumPy lacks",
                hint="data() gives its bytes; gguf.quants.dequantize converts them to numbers",
            )
        dtype = info.dtype.numpy.newbyteorder(">") if self.big_endian else info.dtype.numpy
        return self._bytes(info).view(dtype).reshape(info.shape)

    def mapping(self, shard: int = 0) -> Bytes:
        """All bytes of one file, for a backend that uses the mapping directly: see ``TensorInfo.offset``."""
        return self._shards[shard].file.view

    def close(self) -> None:
        """Unmap the files as soon as no returned array uses them. May be called more than once."""
        for shard in self._shards:
            shard.file.close()

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        split = f" in {len(self._shards)} files" if len(self._shards) > 1 else ""
        return f"<GGUFFile {str(self.path)!r}: {len(self.metadata)} keys, {len(self.tensors)} tensors{split}>"

    def _info(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            near = difflib.get_close_matches(name, islice(self.tensors, 10_000), n=1)
            hint = f"did you mean {quoted(near[0])}?" if near else "hotshoe inspect lists the file's contents"
            message = f"the file has no tensor {quoted(name)}"
            raise ModelFileError(message, path=self.path, hint=hint) from None

    def _bytes(self, info: TensorInfo) -> Bytes:
        if info.made is not None:
            return info.made()
        return self._shards[info.shard].file.view[info.offset : info.offset + info.nbytes]


def _open_all(path: Path) -> tuple[Shard, ...]:
    with ExitStack() as opened:  # closes the files that are open if a later one is invalid

        def open_one(path: Path, number: int) -> Shard:
            shard = Shard(path, number)
            opened.callback(shard.file.close)
            return shard

        named = open_one(path, 0)
        count = max(1, named.metadata.get("split.count", 1))  # llama.cpp writes 0 when it merges files
        paths = _split_paths(path, count)
        shards = tuple(named if p == path and i == 0 else open_one(p, i) for i, p in enumerate(paths))
        _check_split(shards)
        if named is not shards[0]:
            named.file.close()
        opened.pop_all()
        return shards


def _split_paths(path: Path, count: int) -> list[Path]:
    name = _SPLIT_NAME.fullmatch(path.name)
    named_count = 1 if name is None else max(1, int(name["count"]))
    if named_count > 1 and count == 1:
        raise ModelFileError(
            f"its name says that the model is split into {named_count} files, but its metadata says that this is the "
            "whole model",
            path=path,
            field="key 'split.count'",
            hint="if it is the whole model, rename the file; otherwise download it again",
        )
    if count == 1:
        return [path]
    if name is None or named_count != count:
        raise ModelFileError(
            f"the model is split into {count} files, so its name should end in -0000N-of-{count:05d}.gguf",
            path=path,
            field="key 'split.count'",
            hint="rename the files to their original names",
        )
    paths = [path.with_name(f"{name['stem']}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    missing = [p.name for p in paths if not p.exists()]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise ModelFileError(
            f"the model is split into {count} files, and {len(missing)} of them are missing in this folder: "
            f"{', '.join(missing[:5])}{more}",
            path=path,
            hint=f"download all {count} files into {path.parent}",
        )
    return paths


def _check_split(shards: tuple[Shard, ...]) -> None:
    first = shards[0]
    names: dict[str, Path] = {}
    for i, shard in enumerate(shards):
        no = shard.metadata.require("split.no", int) if len(shards) > 1 else shard.metadata.get("split.no", 0)
        found = (no, max(1, shard.metadata.get("split.count", 1)))
        if found != (i, len(shards)):
            raise ModelFileError(
                f"the file is number {found[0] + 1} of {found[1]}; expected {i + 1} of {len(shards)}",
                path=shard.file.path,
                field="key 'split.no'",
                hint="files of different models may have been mixed, or renamed",
            )
        if shard.big_endian != first.big_endian:
            raise ModelFileError(f"the byte order differs from that of {first.file.path.name}", path=shard.file.path)
        for name in shard.tensors:
            if name in names:
                raise ModelFileError(
                    f"the tensor is also in {names[name].name}", path=shard.file.path, field=f"tensor {quoted(name)}"
                )
            names[name] = shard.file.path
    total = first.metadata.get("split.tensors.count", len(names))
    if total != len(names):
        raise ModelFileError(
            f"the files hold {len(names)} tensors; expected {total}",
            path=first.file.path,
            field="key 'split.tensors.count'",
            hint=DAMAGED,
        )
