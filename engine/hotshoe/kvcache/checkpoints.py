"""Checkpoints: after which tokens a recurrent cache keeps a state, so that texts that begin alike can go on there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

__all__ = ["checkpoints", "on_grid"]

_SPACING = 256
_EARLY = (64, 128)
_MESSAGES = 4  # the ends of the last messages, and of the first one


def on_grid(position: int) -> bool:
    """Whether the state after ``position`` tokens is kept, whatever the tokens are."""
    return position % _SPACING == 0 or position in _EARLY


def checkpoints(rows: Sequence[Any], start: int, ends: Collection[Any]) -> list[int]:
    """Return after how many of the rows from ``start`` on a state is kept: on the grid and at the ends of messages.

    ends: the tokens that end a message.
    """
    found = [i + 1 for i, row in enumerate(rows) if row in ends]
    wanted = {*found[:1], *found[-_MESSAGES:], *_EARLY, *range(_SPACING, len(rows), _SPACING)}
    return sorted(position - start for position in wanted if start < position < len(rows))
