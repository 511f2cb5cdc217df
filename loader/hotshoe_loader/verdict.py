"""What became of a candidate: one of a closed list of outcomes, the reason, and the next step."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hotshoe_core.errors.text import printable, shown

__all__ = ["Kind", "Outcome", "Rejected", "Verdict"]

Kind = Literal["plugin", "library"]


class Outcome(enum.Enum):
    """Every way a candidate can end.

    loaded: its code is in this process and works. available: it works, and its code is not in this process
    yet. The others: it is not used, for the reason the verdict gives.
    """

    LOADED = "loaded"
    AVAILABLE = "available"
    NOT_INSTALLED = "not-installed"
    BLOCKED = "blocked"
    UNTRUSTED = "untrusted"
    INCOMPATIBLE_API = "incompatible-api"
    ABI_MISMATCH = "abi-mismatch"
    MISSING_DEPENDENCY = "missing-dependency"
    IMPORT_ERROR = "import-error"
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
        """Whether something that was installed to be used cannot be, and not by anybody's wish."""
        return self in _BROKEN


_BROKEN = frozenset(
    {
        Outcome.UNTRUSTED,
        Outcome.INCOMPATIBLE_API,
        Outcome.ABI_MISMATCH,
        Outcome.MISSING_DEPENDENCY,
        Outcome.IMPORT_ERROR,
        Outcome.CRASHED,
        Outcome.TIMED_OUT,
        Outcome.WRONG_RESULT,
    }
)

_MOST_TEXT = 4000  # characters of a reason; an exception's message may be of any length


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one candidate plugin or native library, and why.

    origin: the distribution with its version, or the file. elapsed: seconds spent on it. details: facts
    for machines ("provider", "score", "devices", …): strings, numbers, or lists of strings. All text is made printable:
    much of it is what plugins, drivers and file names say.
    """

    candidate: str
    kind: Kind
    outcome: Outcome
    reason: str
    hint: str | None = None
    origin: str = ""
    elapsed: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("candidate", "reason", "hint", "origin"):
            text = getattr(self, name)
            if text is not None:
                object.__setattr__(self, name, printable(text, _MOST_TEXT))
        object.__setattr__(self, "details", {str(key): _plain(value) for key, value in self.details.items()})

    def __str__(self) -> str:
        return f"{self.candidate}: {self.outcome.value}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        """The verdict as what ``json.dumps`` takes."""
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
    """``value`` as JSON has it, its text printable."""
    if value is None or isinstance(value, (int, float, bool)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return printable(str(value), _MOST_TEXT)


class Rejected(Exception):  # noqa: N818 - not an error: how a stage hands its verdict to the survey
    """Raised by a stage about the candidate in hand; never leaves this package."""

    def __init__(self, outcome: Outcome, reason: str, hint: str | None = None, **details: Any) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = printable(reason, _MOST_TEXT)
        self.hint = None if hint is None else printable(hint, _MOST_TEXT)
        self.details = {key: _plain(value) for key, value in details.items()}

    def to_json(self) -> dict[str, Any]:
        return {"outcome": self.outcome.value, "reason": self.reason, "hint": self.hint, "details": self.details}

    @staticmethod
    def from_json(data: Any) -> Rejected:
        """The rejection. Raises ValueError, TypeError or KeyError for what is none."""
        outcome, reason, hint, details = Outcome(data["outcome"]), data["reason"], data["hint"], data["details"]
        if not isinstance(reason, str) or not isinstance(hint, (str, type(None))) or not isinstance(details, dict):
            raise ValueError("a rejection has a reason, perhaps a hint, and details")
        rejected = Rejected(outcome, reason, hint)
        rejected.details = {_detail(key): _plain(_checked(key, value)) for key, value in details.items()}
        return rejected


_LINES = ("traceback", "output")  # details that are shown line by line


def _detail(key: object) -> str:
    if not isinstance(key, str) or not key.isidentifier():
        raise ValueError(f"a detail is called {shown(key)}; expected a name")
    return key


def _checked(key: str, value: Any) -> Any:
    """A detail as ``Verdict.details`` has them. Raises ValueError for one that would fail where it is shown."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    if key in _LINES or not (value is None or isinstance(value, (str, int, float))):
        raise ValueError(
            f"the detail {key} is {shown(value)}; expected {'' if key in _LINES else 'a plain value or '}a list of text"
        )
    return value
