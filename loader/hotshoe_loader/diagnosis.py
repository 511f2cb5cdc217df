"""What the doctor says: findings, and of those that leave something to do the order in which to do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Diagnosis", "Finding", "Level"]

Level = Literal["ok", "note", "todo"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. ok: as it should be; note: worth knowing; todo: ``fix`` makes it better."""

    about: str
    level: Level
    text: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings; those that leave something to do in the order in which to do it."""

    findings: tuple[Finding, ...]
    todo: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """The best device of this machine for which there is a plugin is used, and nothing installed is broken."""
        return not self.todo

    @property
    def next(self) -> Finding | None:
        """The one thing to do first."""
        return self.todo[0] if self.todo else None

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as what ``json.dumps`` takes."""
        fields = ("about", "level", "text", "fix")
        rows = [{name: getattr(finding, name) for name in fields} for finding in (*self.findings, *self.todo[:1])]
        return {
            "healthy": self.healthy,
            "next": rows.pop() if self.todo else None,
            "findings": rows,
        }
