"""Write a file atomically: it appears under its name only when it is complete and on the disk."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from hotshoe_core.errors import ConversionError

__all__ = ["atomic_write", "check_target"]


def check_target(destination: str | os.PathLike[str], overwrite: bool, *, example: str = "model.gguf") -> Path:
    """Check, before any work is done, that a file can be written to ``destination``. Return its path.

    Raises ConversionError if it is a folder, if its folder is missing, or if it exists and ``overwrite`` is false.
    """
    target = Path(destination).expanduser()
    if target.is_dir():
        raise ConversionError(
            f"{target} is a folder; expected the name of the file to write", hint=f"for example {target / example}"
        )
    if not target.parent.is_dir():
        raise ConversionError(
            f"cannot write {target}: the folder {target.parent} does not exist", hint=f"mkdir -p {target.parent}"
        )
    if target.exists() and not overwrite:
        raise ConversionError(
            f"{target} exists already",
            hint="choose another name, or allow it to be replaced (overwrite=True, --overwrite)",
        )
    return target


@contextlib.contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file to write. On success it is flushed to the disk and renamed to ``target``.

    If anything fails, the temporary file is deleted and ``target`` stays unchanged.

    Raises ConversionError if the system refuses to write, for example because the disk is full.
    """
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}.part")
    try:
        yield part
        _flush(part)  # without this, a power failure after the rename could leave an empty file under the final name
        os.replace(part, target)
        _flush_folder(target.parent)
    except OSError as error:
        raise ConversionError(
            f"cannot write {target}: {error.strerror or error}",
            hint="check the free space and the permissions of the folder",
        ) from error
    finally:
        # also after KeyboardInterrupt, and when closing the file failed because the disk is full
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    with open(path, "rb+") as file:  # Windows flushes only files that are open for writing
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    """Make the rename itself durable. Only POSIX can open a folder; some network file systems refuse to flush one."""
    if os.name == "posix":
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
