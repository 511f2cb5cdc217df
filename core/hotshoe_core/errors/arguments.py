"""Validate user arguments where they are passed; the error names the argument."""

from __future__ import annotations

import contextlib
import errno
import operator
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hotshoe_core.errors import HotshoeError, InputTypeError
from hotshoe_core.errors.text import shown

__all__ = ["described", "file_path", "flag", "integer", "listed", "regular"]


def integer(what: str, value: Any, least: int, error: type[HotshoeError]) -> int:
    """``value`` as an int of ``least`` or more. Accepts NumPy integers; raises ``error`` for bools and other types."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except (TypeError, ValueError):
        raise error(f"{what} is {described(value)}; expected an integer of {least} or more") from None
    if number < least:
        raise error(f"{what} is {shown(number, 60)}; expected {least} or more")
    return number


def flag(what: str, value: Any) -> bool:
    """``value`` as a bool. Accepts NumPy's bool; raises InputTypeError for any other type."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise InputTypeError(f"{what} is {described(value)}; expected True or False")


def listed(what: str, value: Any, expected: str, error: type[HotshoeError]) -> list[Any]:
    """The elements of an iterable. Raises ``error`` if ``value`` is not iterable, or is a str or bytes."""
    items: Iterable[Any] | None = None
    if not isinstance(value, (str, bytes, bytearray)):
        with contextlib.suppress(TypeError):
            items = iter(value)
    if items is None:
        raise error(f"{what} is {described(value)}; expected {expected}")
    return list(items)


def file_path(what: str, value: Any, error: type[HotshoeError]) -> Path:
    """``value`` as a Path, with a leading ``~`` expanded, whether or not the file exists.

    Raises ``error`` for any type except str and PathLike, and for a name that no file can have.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise error(f"{what} is {described(value)}; expected a str or a Path")
    try:
        path = Path(value).expanduser()
        os.stat(path)
        return path
    except OSError as e:
        if e.errno != errno.ENAMETOOLONG:  # what is wrong with the file is said where it is opened
            return path
        why = e.strerror
    except (TypeError, ValueError, RuntimeError) as e:  # bytes; a NUL or a lone surrogate; an unknown ~user
        why = str(e)
    raise error(f"{what} is {described(value)}, which cannot be the name of a file: {why}")


def regular(path: Path) -> Path:
    """Return ``path`` if it is a regular file. Raise OSError otherwise: to read a pipe or a device may never end."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is a pipe, socket, device or folder; expected a file", str(path))
    return path


def described(value: object) -> str:
    """Describe a value of any type in one short line for a message: its repr and its type."""
    return f"{shown(value, 60)} ({type(value).__name__})"
