"""StopMatcher: find stop strings in a text that arrives in pieces, without returning a part of one."""

from __future__ import annotations

from collections.abc import Iterable

from hotshoe_core.errors import SamplingError
from hotshoe_core.errors.arguments import listed

__all__ = ["StopMatcher"]


class StopMatcher:
    """Passes text on up to the first stop string. The result does not depend on how the text is cut into pieces.

        text = matcher.add(piece)        # the text that can be shown now
        if matcher.matched: ...          # a stop string was found; no more text is returned
        text += matcher.flush()          # at the end of a generation: the text that was held back

    Only text that may be the start of a stop string is held back. The first stop string is the one that is complete
    first; if several are complete at the same character, the longest.
    """

    __slots__ = ("_held", "_longest", "_stops", "matched")

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = (stops,) if isinstance(stops, str) else tuple(listed("stop", stops, "strings", SamplingError))
        if not all(isinstance(stop, str) and stop for stop in self._stops):
            raise SamplingError(f"stop strings are {self._stops!r}; expected strings of at least one character")
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.matched: str | None = None

    def add(self, piece: str) -> str:
        """Add a piece. Return the text that can be shown now; "" after a stop string was found."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        found = [(first + len(stop), first, stop) for stop in self._stops if (first := text.find(stop)) >= 0]
        if found:
            _, first, self.matched = min(found)
            self._held = ""
            return text[:first]
        start = next(
            (i for i in range(max(0, len(text) - self._longest + 1), len(text)) if self._begins(text, i)), None
        )
        if start is None:
            self._held = ""
            return text
        self._held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """Return the text that was held back, at the end of a generation. Resets the matcher."""
        held, self._held = self._held, ""
        self.matched = None
        return held

    def _begins(self, text: str, start: int) -> bool:
        """True if the text from ``start`` on is the start of a stop string."""
        rest = text[start:]
        return any(stop.startswith(rest) for stop in self._stops)
