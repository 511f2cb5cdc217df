"""One file mapped into memory, read-only."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt

from hotshoe_core.errors import ClosedError, ModelFileError, similar
from hotshoe_core.gguf._format import DAMAGED, HEADER_BYTES, MAGIC, looks_like

__all__ = ["Bytes", "MappedFile"]

Bytes = npt.NDArray[np.uint8]


@final
class MappedFile:
    """The bytes of a regular file as a read-only array that shares the page cache.

    If a mapped file shrinks, reading the lost part kills the process (SIGBUS). ``view`` compares the sizes first and
    raises ModelFileError instead, except in a race.
    """

    __slots__ = ("_mmap", "_view", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Check the type before opening: opening a FIFO would wait for a writer.
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode):
                raise _not_a_file(path, mode)
            with open(path, "rb", buffering=0) as file:
                self.size = os.fstat(file.fileno()).st_size
                head = file.read(64)
                _check_head(path, head, self.size)
                self._mmap = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelFileError("the file does not exist", path=path, hint=_neighbours(path)) from None
        except PermissionError:
            hint = "check the permissions of the file and of its folders"
            raise ModelFileError("no permission to read the file", path=path, hint=hint) from None
        except (OSError, ValueError) as e:  # ValueError: a NUL in the name, or a size that changed meanwhile
            raise ModelFileError(f"the file cannot be opened: {e}", path=path) from e
        self._view: Bytes | None = np.frombuffer(self._mmap, np.uint8)

    @property
    def view(self) -> Bytes:
        """All bytes. Raises ClosedError after ``close``, ModelFileError if the file has shrunk."""
        view = self._view
        if view is None:
            raise ClosedError(f"{self.path} is closed", hint="read the data before GGUFFile.close()")
        try:
            size = self._mmap.size()
        except (OSError, ValueError):  # another thread closed it after the line above; the view keeps the bytes
            return view
        if size < self.size:
            message = f"the file has shrunk from {self.size} to {size} bytes since it was opened"
            raise ModelFileError(message, path=self.path, hint=DAMAGED)
        return view

    def close(self) -> None:
        """Unmap the file, or leave that to the last array that still uses it. May be called more than once."""
        self._view = None
        with contextlib.suppress(BufferError):
            self._mmap.close()


def _check_head(path: Path, head: bytes, size: int) -> None:
    if not size:
        raise ModelFileError("the file is empty", path=path, hint="download it again")
    if head[:4] != MAGIC:
        what, step = looks_like(head)
        raise ModelFileError(
            f"this is not a GGUF file: {what}",
            path=path,
            field="magic",
            offset=0,
            hint=step,
        )
    if size < HEADER_BYTES:
        message = f"the file has {size} bytes, but a GGUF header alone has {HEADER_BYTES}"
        raise ModelFileError(message, path=path, field="header", hint=DAMAGED)


def _not_a_file(path: Path, mode: int) -> ModelFileError:
    if not stat.S_ISDIR(mode):
        return ModelFileError("this is a pipe, socket or device; expected a file that can be mapped", path=path)
    inside = sorted(p.name for p in path.glob("*.gguf"))[:5]
    if inside:
        hint = f"name a file in it: {', '.join(inside)}"
    elif (path / "config.json").exists():
        hint = "this is a Hugging Face model: make a GGUF file from it with hotshoe convert"
    else:
        hint = "name a .gguf file"
    return ModelFileError("this is a folder; expected a GGUF file", path=path, hint=hint)


def _neighbours(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.glob("*.gguf")]
    except OSError:
        names = []
    if not names:
        return "check the path; a relative path starts at the current directory"
    near = similar(path.name, names[:50])
    folder = "this folder" if path.parent == Path() else f"the folder {path.parent}"
    return f"did you mean {near!r}?" if near else f"{folder} has {', '.join(sorted(names)[:10])}"
