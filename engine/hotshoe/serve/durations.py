"""Durations as Ollama's clients write them: seconds, or a text such as ``5m``; a negative one means forever."""

from __future__ import annotations

import re

from hotshoe_core.errors import OptionError

__all__ = ["seconds_of"]

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"\d+(?:\.\d+)?"
_PART = re.compile(rf"({_NUMBER})(ms|s|m|h)")
_LONGEST = 1e9  # seconds, 31 years; no calendar has a date for much more


def seconds_of(what: str, given: float | str) -> float | None:
    """The seconds of a duration; None for a negative one, and for more than 31 years.

    Raises OptionError if it is not a duration.
    """
    if isinstance(given, str):
        text = given.strip()
        number = text.removeprefix("-")
        if re.fullmatch(_NUMBER, number):
            seconds = float(number)
        elif re.fullmatch(f"(?:{_PART.pattern})+", number):
            seconds = sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(number))
        else:
            raise OptionError(
                f"{what} is {given!r:.100}; expected a duration", hint="for example 300, 30s, 5m or 1h30m"
            )
        if text.startswith("-"):
            return None
    else:
        seconds = given
    return float(seconds) if 0 <= seconds <= _LONGEST else None
