"""Checks of what users pass: what is no integer, no iterable or no tensor is said where it was given."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable
from typing import Any

from hotshoe_core.errors import HotshoeError, InputTypeError
from hotshoe_core.errors.text import shown

__all__ = ["described", "flag", "integer", "listed"]


def integer(what: str, value: Any, least: int, error: type[HotshoeError]) -> int:
    """``value`` as an int. NumPy's are taken, bools are not. Raises ``error``, also for less than ``least``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except (TypeError, ValueError):
        raise error(f"{what} is {described(value)}; expected an integer of {least} or more") from None
    if number < least:
        raise error(f"{what} is {number}; expected {least} or more")
    return number


def flag(what: str, value: Any) -> bool:
    """``value`` as a bool, NumPy's too. Raises InputTypeError for all else, whatever its truth."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise InputTypeError(f"{what} is {described(value)}; expected True or False")


def listed(what: str, value: Any, expected: str, error: type[HotshoeError]) -> list[Any]:
    """The elements of an iterable. Raises ``error`` for what is none, and for one text."""
    items: Iterable[Any] | None = None
    if not isinstance(value, (str, bytes, bytearray)):
        with contextlib.suppress(TypeError):
            items = iter(value)
    if items is None:
        raise error(f"{what} is {described(value)}; expected {expected}")
    return list(items)


def described(value: object) -> str:
    """What a message says of a value of any type: what it is, and of which type, in one short line."""
    return f"{shown(value, 60)} ({type(value).__name__})"
