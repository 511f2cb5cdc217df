"""Fault: what a fuzz target raises for something that must not be."""

from __future__ import annotations

__all__ = ["Fault"]


class Fault(Exception):  # noqa: N818  (a finding, not an error of the program)
    """``kind``: "different", "untyped", "slow", "large", "leak", "wrong verdict" or "escape"."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
