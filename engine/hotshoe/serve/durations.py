"""Durations as Ollama's clients write them: seconds, or a text such as ``5m``; a negative one means forever."""

from __future__ import annotations

import re

from hotshoe_core.errors import OptionError

__all__ = ["seconds_of"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|)")


def seconds_of(what: str, given: float | str) -> float | None:
    """The seconds of a duration; None for a negative one. Raises OptionError if it is not a duration."""
    if not isinstance(given, str):
        return None if given < 0 else float(given)
    text = given.strip().removeprefix("-")
    if not re.fullmatch(f"(?:{_PART.pattern})+", text):
        raise OptionError(f"{what} is {given!r:.100}; expected a duration", hint="for example 300, 30s, 5m or 1h30m")
    if given.strip().startswith("-"):
        return None
    return sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text))
