"""Reads small files of unknown origin safely: a FIFO, a device or a huge file does not block it or fill the memory."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["NotRegularError", "file_state", "load_json", "open_regular", "read_bytes", "read_text"]

# O_NONBLOCK: opening a FIFO would otherwise wait for a writer
_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC"):
    _FLAGS |= getattr(os, _name, 0)


class NotRegularError(OSError):
    """The path is not a regular file but a FIFO, a folder or a device."""


def open_regular(path: str | Path) -> tuple[int, int]:
    """Open a regular file. Return its descriptor, which the caller closes, and its size in bytes.

    Raises OSError, or NotRegularError if ``path`` is not a regular file.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotRegularError(f"{path} is {_kind(found.st_mode)}; expected a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found.st_size


def read_bytes(path: str | Path, limit: int) -> bytes:
    """Read a regular file of at most ``limit`` bytes. Raise OSError if it is longer or not a regular file."""
    descriptor, size = open_regular(path)
    try:
        if size > limit:
            raise OSError(f"{path} has {size} bytes; expected at most {limit}")
        # A file object's read(limit) would allocate ``limit`` bytes first, for each of a thousand small files.
        data = os.read(descriptor, size + 1)
        if len(data) != size or not data:  # its size changes, or its file system does not report sizes
            with os.fdopen(os.dup(descriptor), "rb") as file:
                data += file.read(limit + 1 - len(data))
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise OSError(f"{path} has more than {limit} bytes")
    return data


def read_text(path: str | Path, limit: int) -> str:
    """Read a regular file of at most ``limit`` bytes as UTF-8 text.

    Raises OSError, or UnicodeDecodeError (a ValueError) if it is not UTF-8.
    """
    return read_bytes(path, limit).decode("utf-8")


def load_json(text: str) -> Any:
    """Parse JSON. Raise ValueError if ``text`` is not JSON or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def file_state(path: str | Path) -> tuple[int, int] | None:
    """A file's size in bytes and time of its last change in ns, to detect that it was replaced. None if missing."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "something else")
