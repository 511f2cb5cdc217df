"""Marks: what clients write into a prompt that is different in each request. It would make a cached prefix useless."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["without_marks"]

_MARKS = re.compile(r"^x-anthropic-billing-header:.*(?:\n|\Z)", re.MULTILINE)
_INSTRUCTIONS = ("system", "developer")


def without_marks(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages without the marks in their instructions. Instructions that were only a mark are left out."""
    found = []
    for message in messages:
        content = message.get("content")
        if message.get("role") in _INSTRUCTIONS and isinstance(content, str) and _MARKS.search(content):
            kept = _MARKS.sub("", content).strip("\n")
            if kept:
                found.append(message | {"content": kept})
        else:
            found.append(message)
    return found
