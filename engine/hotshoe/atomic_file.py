"""Write a file atomically: it appears under its name only when it is complete and on the disk."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from hotshoe_core.errors import ConversionError
from hotshoe_core.errors.arguments import file_path

if sys.platform != "win32":
    import fcntl

__all__ = ["atomic_write", "check_target", "lock_file"]


def check_target(destination: str | os.PathLike[str], overwrite: bool, *, example: str = "model.gguf") -> Path:
    """Check, before any work is done, that a file can be written to ``destination``. Return its path.

    Raises ConversionError if it is a folder, a device, a pipe or a socket, if its folder is missing, or if it exists
    and ``overwrite`` is false. A link is judged by what it points to.
    """
    target = file_path("the file to write", destination, ConversionError)
    real = _real(target)
    if real.is_dir():
        raise ConversionError(
            f"{target} is a folder; expected the name of the file to write", hint=f"for example {target / example}"
        )
    folder = real.parent if target.is_symlink() else target.parent
    if not folder.is_dir():
        raise ConversionError(f"cannot write {target}: the folder {folder} does not exist", hint=f"mkdir -p {folder}")
    if real.exists() and not overwrite:
        raise ConversionError(
            f"{target} exists already",
            hint="choose another name, or allow it to be replaced: overwrite=True",
        )
    return target


@contextlib.contextmanager
def atomic_write(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file to write. On success it is flushed to the disk and renamed to ``target``.

    If ``target`` is a link, the file that it points to is written, and the link stays. If anything fails, or a signal
    ends the process, the temporary file is deleted and ``target`` stays unchanged. Temporary files for the same target
    that killed processes left behind are deleted first.

    Raises ConversionError if the system refuses to write, for example because the disk is full, and if ``target`` is
    not a regular file.
    """
    real = _real(target)
    _remove_abandoned(real)
    part = real.with_name(f".{real.name}.{secrets.token_hex(4)}.part")
    with _unwinding_signals():
        try:
            with open(part, "xb") as lock:  # Windows renames only files that are not open
                with contextlib.suppress(OSError):  # some network file systems have no locks
                    lock_file(lock)
                yield part
                os.fsync(lock.fileno())  # otherwise a power failure could leave an empty file under the final name
            os.replace(part, _real(target))
            _flush_folder(real.parent)
        except OSError as error:
            raise ConversionError(
                f"cannot write {target}: {error.strerror or error}",
                hint="check the free space and the permissions of the folder",
            ) from error
        finally:
            # also after KeyboardInterrupt, and when closing the file failed because the disk is full
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _real(target: Path) -> Path:
    """The file that ``target`` is, or points to. Raises ConversionError if renaming a file to it would remove a device,
    a pipe or a socket."""
    try:
        real = Path(os.path.realpath(target))
    except OSError as error:  # a relative name in a folder that was removed
        raise ConversionError(f"cannot write {target}: {error.strerror or error}", hint="change the folder") from None
    try:
        mode = os.lstat(real).st_mode
    except OSError:  # it does not exist
        return real
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = "a link to itself" if stat.S_ISLNK(mode) else "a device, pipe or socket"
        raise ConversionError(
            f"{target} is {what}; expected the name of a file to write", hint="choose another name, such as model.gguf"
        )
    return real


def lock_file(file: BinaryIO) -> None:
    """Lock a file until it is closed or the process ends. Raises OSError if another process has locked it.

    Windows needs no lock: it does not delete open files.
    """
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_abandoned(target: Path) -> None:
    """Delete the temporary files of processes that were killed while they wrote ``target``."""
    for part in target.parent.glob(f".{glob.escape(target.name)}.{'[0-9a-f]' * 8}.part"):
        with contextlib.suppress(OSError):
            if sys.platform != "win32":
                with open(part, "rb") as file:
                    lock_file(file)
            part.unlink()


@contextlib.contextmanager
def _unwinding_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP run the ``finally`` blocks inside, and end the process afterwards.

    Signals that the program handles or ignores stay as they are.
    """
    received: list[int] = []

    def unwind(number: int, frame: object) -> None:
        received.append(number)
        raise SystemExit(128 + number)

    changed = []
    for number in {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
        with contextlib.suppress(ValueError):  # only the main thread may handle signals
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, unwind)
                changed.append(number)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)
        if received:
            signal.raise_signal(received[0])


def _flush_folder(folder: Path) -> None:
    """Make the rename itself durable. Only POSIX can open a folder; some network file systems refuse to flush one."""
    if os.name == "posix":
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
