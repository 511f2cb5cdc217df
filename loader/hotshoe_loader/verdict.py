"""Verdicts: for each candidate one outcome of a closed list, the reason, and the next step."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hotshoe_core.errors.text import printable, shown

__all__ = ["Kind", "Outcome", "Rejected", "Verdict"]

Kind = Literal["plugin", "library"]


class Outcome(enum.Enum):
    """The result for one candidate. A candidate with any outcome except ``LOADED`` and ``AVAILABLE`` is not used."""

    LOADED = "loaded"
    """It works, and its code is in this process."""
    AVAILABLE = "available"
    """It works. Its code is imported when a device of it is opened."""
    NOT_INSTALLED = "not-installed"
    BLOCKED = "blocked"
    UNTRUSTED = "untrusted"
    INCOMPATIBLE_API = "incompatible-api"
    ABI_MISMATCH = "abi-mismatch"
    MISSING_DEPENDENCY = "missing-dependency"
    IMPORT_ERROR = "import-error"
    INVALID_OPTION = "invalid-option"
    """A variable that only this plugin reads has an invalid value."""
    NO_DEVICE = "no-device"
    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    WRONG_RESULT = "wrong-result"
    SHADOWED = "shadowed"
    OUTSCORED = "outscored"

    @property
    def usable(self) -> bool:
        """Whether the candidate's devices can be used."""
        return self in (Outcome.LOADED, Outcome.AVAILABLE)

    @property
    def broken(self) -> bool:
        """Whether something is installed and cannot be used, although the user did not block it."""
        return self in _BROKEN


_BROKEN = frozenset(
    {
        Outcome.UNTRUSTED,
        Outcome.INCOMPATIBLE_API,
        Outcome.ABI_MISMATCH,
        Outcome.MISSING_DEPENDENCY,
        Outcome.IMPORT_ERROR,
        Outcome.INVALID_OPTION,
        Outcome.CRASHED,
        Outcome.TIMED_OUT,
        Outcome.WRONG_RESULT,
    }
)

_MAX_TEXT = 4000  # characters of a reason; an exception's message may have any length


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for one candidate (a plugin or a native library), with the reason and the next step.

    All text is made printable: much of it comes from plugins, drivers and file names.
    """

    candidate: str
    """Name of the provider, plugin or library."""
    kind: Kind
    outcome: Outcome
    reason: str
    hint: str | None = None
    """What the user can do next, such as a command; None if nothing is to be done."""
    origin: str = ""
    """The distribution with its version, or the path of the file."""
    elapsed: float = 0.0
    """Seconds spent on the candidate."""
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Facts for programs ("provider", "score", "devices", …): strings, numbers, or lists of strings."""

    def __post_init__(self) -> None:
        for name in ("candidate", "reason", "hint", "origin"):
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, printable(text, _MAX_TEXT))
        object.__setattr__(self, "details", {str(key): _plain(value) for key, value in self.details.items()})

    def __str__(self) -> str:
        return f"{self.candidate}: {self.outcome.value}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain values for ``json.dumps``."""
        return {
            "candidate": self.candidate,
            "kind": self.kind,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "hint": self.hint,
            "origin": self.origin,
            "elapsed": round(self.elapsed, 6),
            "details": dict(self.details),
        }


def _plain(value: Any) -> Any:
    """``value`` as plain JSON values with printable text."""
    if value is None or isinstance(value, (int, float, bool)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return printable(str(value), _MAX_TEXT)


class Rejected(Exception):  # noqa: N818 - not an error: a stage's result for a candidate it does not pass on
    """Raised by a stage for the candidate it looks at; never leaves this package."""

    def __init__(self, outcome: Outcome, reason: str, hint: str | None = None, **details: Any) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = printable(reason, _MAX_TEXT)
        self.hint = None if hint is None else printable(hint, _MAX_TEXT)
        self.details = {key: _plain(value) for key, value in details.items()}

    def verdict(
        self, candidate: str, kind: Kind, origin: str, elapsed: float = 0.0, details: Mapping[str, Any] | None = None
    ) -> Verdict:
        """The verdict on ``candidate``.

        details: more facts. They replace those of the rejection with the same key, which a plugin may have chosen.
        """
        merged = {**self.details, **(details or {})}
        return Verdict(candidate, kind, self.outcome, self.reason, self.hint, origin, elapsed, merged)

    def with_age(self, age: float | None) -> Rejected:
        """A rejection that says how long ago it was found, if something broken may work by now.

        age: seconds since the probe; None if it was made just now.
        """
        if age is None or not self.outcome.broken:
            return self
        when = f"{age:.0f} s" if age < 120 else f"{age / 60:.0f} minutes"
        reason = f"{self.reason} (found {when} ago; load_all(refresh=True) tests it again)"
        rejected = Rejected(self.outcome, reason, self.hint)
        rejected.details = self.details
        return rejected

    def to_json(self) -> dict[str, Any]:
        return {"outcome": self.outcome.value, "reason": self.reason, "hint": self.hint, "details": self.details}

    @staticmethod
    def from_json(data: Any) -> Rejected:
        """Return the rejection. Raise ValueError, TypeError or KeyError if ``data`` is not a serialised rejection."""
        outcome, reason, hint, details = Outcome(data["outcome"]), data["reason"], data["hint"], data["details"]
        if not isinstance(reason, str) or not isinstance(hint, (str, type(None))) or not isinstance(details, dict):
            raise ValueError("a rejection has a reason, an optional hint, and details")
        rejected = Rejected(outcome, reason, hint)
        rejected.details = {_checked_key(key): _plain(_checked_value(key, value)) for key, value in details.items()}
        return rejected


_LINES = ("traceback", "output")  # details that are shown line by line


def _checked_key(key: object) -> str:
    if not isinstance(key, str) or not key.isidentifier():
        raise ValueError(f"a detail is called {shown(key)}; expected an identifier")
    return key


def _checked_value(key: str, value: Any) -> Any:
    """Return a value that ``Verdict.details`` may hold. Raise ValueError for a value that could not be shown."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return value
    if key in _LINES or not (value is None or isinstance(value, (str, int, float))):
        raise ValueError(
            f"the detail {key} is {shown(value)}; expected {'' if key in _LINES else 'a plain value or '}a list of text"
        )
    return value
