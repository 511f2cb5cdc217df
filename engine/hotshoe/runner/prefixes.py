"""PrefixStore: the beginnings of texts that the cache had no more room for, in memory and on the disk.

A text is divided into blocks of 256 rows. The key of a block is a hash of its rows and of the key before it, so it
names the whole text up to there. Texts that begin alike share blocks. A file is read only if its checksum is right, and
only by the same model with the same settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import math
import os
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

import hotshoe
from hotshoe.runner.items import Row, SpanRow, n_common
from hotshoe_core.errors import OptionError

if TYPE_CHECKING:
    from hotshoe.runner.base import ModelParts

__all__ = ["BLOCK", "Block", "Match", "Place", "PrefixStore", "open_store"]

_log = logging.getLogger(__name__)
BLOCK = 256  # rows
_IDENTIFYING = 1 << 20  # bytes at the beginning of a model's file that tell it from others, with its size and time
_MAGIC = b"hotshoe prefix 1"
_SUM = 32  # bytes of a checksum and of a key
_MAX_HEAD = 1 << 20
_OURS = re.compile(r"[0-9a-f]{32}/[0-9a-f]{64}(?:\.[0-9a-f]{8})?")

Array = np.ndarray[Any, Any]
Rows = list[Row]


class Block(NamedTuple):
    """Up to 256 rows, and what the cache held of them, by the names that the cache gave."""

    rows: Rows
    parent: bytes
    arrays: Mapping[str, Array]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class Place(NamedTuple):
    """Where a block is in a text: rows [first, last)."""

    key: bytes
    parent: bytes
    first: int
    last: int


class Match(NamedTuple):
    """The longest beginning of a text that is stored."""

    n: int
    """Rows in common."""
    keys: list[bytes]
    """The blocks, in order."""
    other: Row | None
    """The row that the stored text has where the two part; None if it ends there."""


class PrefixStore:
    """Blocks of at most ``max_memory`` bytes in memory and ``max_disk`` bytes in files; the least recently used go.

    What leaves the memory is written to the disk. At the start, files of all models beyond ``max_disk`` are deleted,
    the least recently used first: nobody may load their model again. identity: what the contents depend on except the
    text: the version of hotshoe, the model's file, the settings of its cache. folder: where files are kept, in a
    folder that only this user can read. Raises OptionError if it cannot be made.
    """

    def __init__(self, identity: bytes, max_memory: int, max_disk: int = 0, folder: Path | None = None) -> None:
        self._root = hashlib.sha256(identity).digest()
        self._max_memory = max_memory
        self._max_disk = max_disk if folder is not None else 0
        self._blocks: OrderedDict[bytes, Block] = OrderedDict()
        self._files: OrderedDict[bytes, int] = OrderedDict()
        """The sizes of the files."""
        self._known: dict[bytes, Block] = {}
        """All blocks, without their arrays."""
        self._children: dict[bytes, set[bytes]] = {}
        self._folder = None
        if folder is not None and max_disk:
            _shrink_folder(folder, max_disk)
            self._folder = folder / self._root.hex()[:32]
            try:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise OptionError(f"cannot keep prefixes in {folder}: {error}", hint="choose another folder") from error
            self._find_files(self._folder)

    @property
    def memory_bytes(self) -> int:
        """The size of the blocks in memory."""
        return sum(block.nbytes for block in self._blocks.values())

    @property
    def disk_bytes(self) -> int:
        """The size of the files."""
        return sum(self._files.values())

    def match(self, rows: Sequence[Row]) -> Match:
        """Return the longest beginning of ``rows`` that is stored."""
        match = self._match(rows)
        for key in reversed(match.keys):  # a block is of no use without those before it: these are to go last
            for kept in (self._blocks, self._files):
                if key in kept:
                    kept.move_to_end(key)
        return match

    def _match(self, rows: Sequence[Row]) -> Match:
        parent, n, keys = self._root, 0, list[bytes]()
        while True:
            rest = rows[n : n + BLOCK]
            children = {key: n_common(self._known[key].rows, rest) for key in self._children.get(parent, ())}
            best = max(children, key=lambda key: children[key], default=None)
            if best is None or not children[best]:
                return Match(n, keys, None)
            keys.append(best)
            n += children[best]
            if children[best] < BLOCK:
                stored = self._known[best].rows
                return Match(n, keys, stored[children[best]] if children[best] < len(stored) else None)
            parent = best

    def get(self, key: bytes) -> Block | None:
        """Return a block; None if its file is damaged or gone."""
        block = self._blocks.get(key)
        if block is None and (path := self._path(key)) is not None and key in self._files:
            block = _read(path, key)
            if block is None:
                _log.warning("%s is damaged or gone; the text is computed again", path)
                self._remove_file(key)
                return None
            with contextlib.suppress(OSError):
                os.utime(path)  # the order of use, for the next start
        return block

    def missing(self, rows: Sequence[Row], start: int, size: Callable[[int, int], int]) -> list[Place]:
        """Return the blocks of ``rows`` after ``start`` that are not stored, or less of them; the last one first.

        In this order they are to be stored: a block is of no use without those before it, which are to go last.
        size: the bytes that the cache holds of rows [first, last).
        """
        found = [p for p in self._places(rows) if p.last > start and size(p.first, p.last) > self._stored_bytes(p.key)]
        return found[::-1]

    def put(self, rows: Sequence[Row], place: Place, arrays: Mapping[str, Array]) -> None:
        """Store what the cache held of a block of ``rows``, which ``missing`` returned."""
        self._remove(place.key)
        self._add(place.key, Block(list(rows[place.first : place.last]), place.parent, arrays))
        self._shrink()

    def flush(self) -> None:
        """Write the blocks in memory to the disk, as far as it may be used."""
        for key in list(self._blocks):
            self._write(key, self._blocks[key])

    def _places(self, rows: Sequence[Row]) -> Iterator[Place]:
        parent = self._root
        for first in range(0, len(rows), BLOCK):
            last = min(len(rows), first + BLOCK)
            key = hashlib.sha256(parent + _encoded(rows[first:last])).digest()
            yield Place(key, parent, first, last)
            parent = key

    def _stored_bytes(self, key: bytes) -> int:
        block = self._blocks.get(key)
        return block.nbytes if block is not None else self._files.get(key, 0)

    # Memory

    def _add(self, key: bytes, block: Block) -> None:
        self._blocks[key] = block
        self._index(key, block)

    def _index(self, key: bytes, block: Block) -> None:
        self._known[key] = block._replace(arrays={})
        self._children.setdefault(block.parent, set()).add(key)

    def _remove(self, key: bytes) -> None:
        self._blocks.pop(key, None)
        self._remove_file(key)

    def _shrink(self) -> None:
        size = self.memory_bytes
        while size > self._max_memory:
            key, block = self._blocks.popitem(last=False)
            size -= block.nbytes
            self._write(key, block)
            self._forget(key)

    def _forget(self, key: bytes) -> None:
        """Remove a block that is neither in memory nor on the disk from the index."""
        if key in self._known and key not in self._blocks and key not in self._files:
            parent = self._known.pop(key).parent
            self._children[parent].discard(key)
            if not self._children[parent]:
                del self._children[parent]

    # Files

    def _path(self, key: bytes) -> Path | None:
        return None if self._folder is None else self._folder / key.hex()

    def _find_files(self, folder: Path) -> None:
        found = []
        for path in folder.iterdir():
            try:
                key, status = bytes.fromhex(path.name), path.stat()
                with path.open("rb") as file:
                    found.append((status.st_mtime_ns, key, status.st_size, _read_head(file)[0]))
            except (OSError, ValueError, KeyError, TypeError):
                with contextlib.suppress(OSError):
                    path.unlink()  # it is damaged, or a process left it that was killed
        for _, key, size, block in sorted(found, key=lambda entry: entry[0]):
            self._files[key] = size
            self._index(key, block)

    def _write(self, key: bytes, block: Block) -> None:
        path = self._path(key)
        if path is None or key in self._files or block.nbytes > self._max_disk:
            return
        data = _encode(key, block)
        while self._files and self.disk_bytes + len(data) > self._max_disk:
            self._remove_file(next(iter(self._files)))
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        try:
            temporary.write_bytes(data)
            os.replace(temporary, path)
        except OSError as error:
            _log.warning("%s: %s; the text will be computed again", path, error)
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._files[key] = len(data)

    def _remove_file(self, key: bytes) -> None:
        if self._files.pop(key, None) is not None and (path := self._path(key)) is not None:
            with contextlib.suppress(OSError):
                path.unlink()
        self._forget(key)


def open_store(parts: ModelParts, n_ctx: int) -> PrefixStore | None:
    """Return the store of a model for texts of ``n_ctx`` tokens; None if its options give it no room."""
    params, path = parts.params, Path(parts.file.path)
    if not parts.backend.params.allocate or not (params.prefix_memory or params.prefix_disk):
        return None
    status = path.stat()
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(_IDENTIFYING)).hexdigest()
    named = (hotshoe.__version__, head, status.st_size, status.st_mtime_ns, parts.file.nbytes)
    identity = (*named, params.kv_dtype, n_ctx, parts.n_attended, parts.model.config.n_drafting)
    folder = None if params.prefix_folder is None else Path(params.prefix_folder)
    return PrefixStore(repr(identity).encode(), params.prefix_memory, params.prefix_disk, folder)


def _shrink_folder(folder: Path, limit: int) -> None:
    """Delete the least recently used files of all models beyond ``limit`` bytes. Other files are left alone."""
    found = []
    for path in folder.glob("*/*"):
        if _OURS.fullmatch(f"{path.parent.name}/{path.name}"):
            with contextlib.suppress(OSError):  # another process deleted it
                status = path.stat()
                found.append((status.st_mtime_ns, path, status.st_size))
    size = sum(n for _, _, n in found)
    for _, path, n in sorted(found):
        if size <= limit:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        size -= n


def _plain(row: Row) -> Any:
    return [row.hash.hex(), row.bidirectional, row.index, row.token] if isinstance(row, SpanRow) else int(row)


def _encoded(rows: Sequence[Row]) -> bytes:
    return json.dumps([_plain(row) for row in rows]).encode()


def _encode(key: bytes, block: Block) -> bytes:
    """Return a file: magic, key, the length of the head, the head, arrays, and the checksum of all of it."""
    arrays = [(name, array.dtype.str, array.shape) for name, array in block.arrays.items()]
    rows = [_plain(row) for row in block.rows]
    head = json.dumps({"parent": block.parent.hex(), "rows": rows, "arrays": arrays}).encode()
    parts = [_MAGIC, key, len(head).to_bytes(4, "little"), head]
    parts += [np.ascontiguousarray(array).tobytes() for array in block.arrays.values()]
    data = b"".join(parts)
    return data + hashlib.sha256(data).digest()


def _read_head(file: BinaryIO) -> tuple[Block, list[tuple[str, np.dtype[Any], tuple[int, ...]]], int]:
    """Return a block without its arrays, what these are, and where they begin. Raises ValueError for another file."""
    if file.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("not a file of ours")
    file.read(_SUM)
    length = int.from_bytes(file.read(4), "little")
    if length > _MAX_HEAD:
        raise ValueError("the head is too long")
    head = json.loads(file.read(length))
    rows = [SpanRow(bytes.fromhex(r[0]), *r[1:]) if isinstance(r, list) else int(r) for r in head["rows"]]
    arrays = [(str(name), np.dtype(dtype), tuple(shape)) for name, dtype, shape in head["arrays"]]
    return Block(rows, bytes.fromhex(head["parent"]), {}), arrays, file.tell()


def _read(path: Path, key: bytes) -> Block | None:
    """Return the block of a file; None if it is damaged, or not the block with this key."""
    try:
        data = path.read_bytes()
        body = data[:-_SUM]
        if hashlib.sha256(body).digest() != data[-_SUM:] or body[len(_MAGIC) : len(_MAGIC) + _SUM] != key:
            return None
        block, described, start = _read_head(io.BytesIO(body))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    arrays = {}
    for name, dtype, shape in described:
        n = math.prod(shape)
        arrays[name] = np.frombuffer(body, dtype, n, start).reshape(shape)
        start += n * dtype.itemsize
    return block._replace(arrays=arrays)
