"""Reads small files that others wrote: whatever lies there in their place, nothing here hangs or fills the memory."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

__all__ = ["NotRegularError", "file_state", "load_json", "open_regular", "read_bytes", "read_text"]

# O_NONBLOCK: opening a FIFO would wait for somebody to write to it
_FLAGS = os.O_RDONLY
for _name in ("O_NONBLOCK", "O_BINARY", "O_CLOEXEC"):
    _FLAGS |= getattr(os, _name, 0)


class NotRegularError(OSError):
    """What lies there is a FIFO, a folder, a device: nothing to read."""


def open_regular(path: str | Path) -> tuple[int, int]:
    """A descriptor of a regular file, which the caller closes, and the file's size.

    Raises OSError; NotRegularError for what is no file.
    """
    descriptor = os.open(path, _FLAGS)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise NotRegularError(f"{path} is {_kind(found.st_mode)}, and no file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found.st_size


def read_bytes(path: str | Path, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit``. Raises OSError for anything else that may lie there."""
    descriptor, size = open_regular(path)
    try:
        if size > limit:
            raise OSError(f"{path} has {size} bytes; expected at most {limit}")
        # Not by a file object's read(limit): that first allocates all of the limit, for each of a thousand small files.
        data = os.read(descriptor, size + 1)
        if len(data) != size or not data:  # it grows or shrinks, or its file system knows no sizes
            with os.fdopen(os.dup(descriptor), "rb") as file:
                data += file.read(limit + 1 - len(data))
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise OSError(f"{path} has more than {limit} bytes")
    return data


def read_text(path: str | Path, limit: int) -> str:
    """The same as text. Raises OSError, or UnicodeDecodeError, which is a ValueError, for what is not UTF-8."""
    return read_bytes(path, limit).decode("utf-8")


def load_json(text: str) -> Any:
    """``json.loads``; raises ValueError for everything that is no JSON, and for what is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def file_state(path: str | Path) -> tuple[int, int] | None:
    """Size in bytes and time of the last change in ns, by which a file is told from another in its place; or None."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFDIR: "a folder", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    return kinds.get(stat.S_IFMT(mode), "something else")
