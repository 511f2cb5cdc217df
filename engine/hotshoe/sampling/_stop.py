"""StopMatcher: finds stop strings in a text that comes in pieces, and gives away no part of one."""

from __future__ import annotations

from collections.abc import Iterable

from hotshoe_core.errors import SamplingError
from hotshoe_core.errors.arguments import listed

__all__ = ["StopMatcher"]


class StopMatcher:
    """Text in, text out, up to the first stop string; the same however the text is cut into pieces.

        text = matcher.add(piece)        # what may be shown now
        if matcher.matched: ...          # a stop string was found; nothing more comes out
        text += matcher.flush()          # at the end of a generation: what was held back

    Held back is only what may be the beginning of a stop string. "First" is the one that is complete first; of
    those complete at the same character, the longest. Pieces are str, so a character is never cut in two.
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
        """What of the text so far can be shown. "" once a stop string was found."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.matched = min(found)
            self._held = ""
            return text[:at]
        start = next(
            (i for i in range(max(0, len(text) - self._longest + 1), len(text)) if self._begins(text, i)), None
        )
        if start is None:
            self._held = ""
            return text
        self._held = text[start:]
        return text[:start]

    def flush(self) -> str:
        """What was held back and is no stop string after all, because nothing follows. Ready to start anew."""
        held, self._held = self._held, ""
        self.matched = None
        return held

    def _begins(self, text: str, at: int) -> bool:
        rest = text[at:]
        return any(stop.startswith(rest) for stop in self._stops)
