"""The doctor's result: findings, and what to do in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Diagnosis", "Finding", "Level"]

Level = Literal["ok", "note", "todo"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    about: str
    """What was checked: "python", "gpu", a plugin's name, …"""
    level: Level
    """ok: as it should be. note: useful to know. todo: ``fix`` improves it."""
    text: str
    fix: str | None = None
    """What the user can do, such as a command."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings of the doctor."""

    findings: tuple[Finding, ...]
    todo: tuple[Finding, ...]
    """The findings with level "todo", in the order in which to do them."""

    @property
    def healthy(self) -> bool:
        """Whether nothing is to be done: the best device that a plugin exists for is used, and no plugin is broken."""
        return not self.todo

    @property
    def next(self) -> Finding | None:
        """What to do first; None if nothing is to be done."""
        return self.todo[0] if self.todo else None

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as plain values for ``json.dumps``."""
        fields = ("about", "level", "text", "fix")
        rows = [{name: getattr(finding, name) for name in fields} for finding in (*self.findings, *self.todo[:1])]
        return {
            "healthy": self.healthy,
            "next": rows.pop() if self.todo else None,
            "findings": rows,
        }
