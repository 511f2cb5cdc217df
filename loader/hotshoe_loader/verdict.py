"""What became of a candidate: one of a closed list of outcomes, the reason, and the next step."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

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

_NO_DETAILS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one candidate plugin or native library, and why.

    origin: the distribution with its version, or the file. elapsed: seconds spent on it. details: facts
    for machines ("provider", "score", "devices", …): strings, numbers, or lists of strings.
    """

    candidate: str
    kind: Kind
    outcome: Outcome
    reason: str
    hint: str | None = None
    origin: str = ""
    elapsed: float = 0.0
    details: Mapping[str, Any] = field(default_factory=lambda: _NO_DETAILS, hash=False)

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
            "details": {key: _plain(value) for key, value in self.details.items()},
        }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return str(value)


class Rejected(Exception):  # noqa: N818 - not an error: how a stage hands its verdict to the survey
    """Raised by a stage about the candidate in hand; never leaves this package."""

    def __init__(self, outcome: Outcome, reason: str, hint: str | None = None, **details: Any) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.hint = hint
        self.details = details

    def to_json(self) -> dict[str, Any]:
        details = {key: _plain(value) for key, value in self.details.items()}
        return {"outcome": self.outcome.value, "reason": self.reason, "hint": self.hint, "details": details}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Rejected:
        return Rejected(Outcome(data["outcome"]), data["reason"], data["hint"], **data["details"])
