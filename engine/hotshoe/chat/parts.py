"""The parts of an answer as they are sent: text and reasoning without white space around them, and whole calls."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from hotshoe.chat.response import Event, ResponseReader

__all__ = ["Call", "Parts", "Text"]

_KINDS = {"content": "content", "reasoning_content": "reasoning", "thinking": "reasoning", "reasoning": "reasoning"}
"""The fields of a message whose text is sent while it is written, and what they are called here."""


class Text(NamedTuple):
    """Some text of the content or of the reasoning."""

    kind: str
    """"content" or "reasoning"."""
    text: str


class Call(NamedTuple):
    """A call of a tool."""

    name: str
    arguments: str
    """A JSON object."""


class Parts:
    """Turns the text of an answer into its parts."""

    def __init__(self, reader: ResponseReader) -> None:
        self._reader = reader
        self._written: set[str] = set()
        """The kinds that have text already."""
        self._pending = ""
        """White space, which is sent only if more text of the same field follows."""
        self._joint = ""
        """What stands between this field and an earlier one of the same kind."""
        self._is_start = True
        """Whether the field has no text yet."""
        self._initial = list(self._parts(reader.initial_events))

    def feed(self, text: str) -> list[Text | Call]:
        """The parts that are complete after more text."""
        found, self._initial = [*self._initial, *self._parts(self._reader.feed(text))], []
        return found

    def finish(self) -> list[Text | Call]:
        """The parts at the end."""
        return [*self._initial, *self._parts(self._reader.finish())]

    def _parts(self, events: Iterable[Event]) -> Iterator[Text | Call]:
        for event in events:
            kind = _KINDS.get(event.field)
            if event.kind == "malformed":  # a call that cannot be read is text, as the model wrote it
                self._joint, self._pending, self._is_start = "\n" if "content" in self._written else "", "", True
                yield from self._text("content", event.text)
            elif event.kind == "open" and kind is not None:
                self._joint, self._pending, self._is_start = "\n" if kind in self._written else "", "", True
            elif event.kind == "chunk" and kind is not None:
                yield from self._text(kind, event.text)
            elif event.kind == "close" and kind is None:
                yield from _calls(event.value)

    def _text(self, kind: str, text: str) -> Iterator[Text]:
        whole = self._pending + text
        if self._is_start:
            whole = self._joint + whole.lstrip() if whole.strip() else ""
        kept = whole.rstrip()
        self._pending = whole[len(kept) :] if kept else whole
        if kept:
            self._is_start = False
            self._written.add(kind)
            yield Text(kind, kept)


def _calls(value: Any) -> Iterator[Call]:
    for call in value if isinstance(value, list) else [value]:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments")
            text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
            yield Call(function["name"], text)
