"""Read a model's answer in parts: text, reasoning and calls of tools, by a response template.

A response template is the inverse of a chat template, as Hugging Face's transformers defines it (5.13 and later). It is
a JSON object that names the fields of a message and says how each begins and ends in the text. A file's tokenizer may
carry one; ``hotshoe.chat.responses`` has those of formats that are in wide use.

    reader = ResponseReader(template, prompt, tools)
    for piece in stream:
        for event in reader.feed(piece): ...
    message = reader.finish()          # {"role": "assistant", "content": "…", "tool_calls": […]}

What cannot be read, such as a call whose JSON is damaged, becomes content, as the model wrote it. So does what follows
when a pattern takes longer than a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import regex

from hotshoe.chat._contents import check_content, check_transform, parse_content, transformed
from hotshoe.chat._typed import typed_arguments
from hotshoe_core.errors import ChatTemplateError

__all__ = ["Event", "ResponseReader", "ResponseTemplate"]

_KEYS = frozenset({"version", "defaults", "fields", "start_anchor", "start_anchor_pattern"})
_FIELD_KEYS = frozenset(
    {
        *("open", "open_pattern", "close", "close_pattern", "content", "content_args", "repeats", "join"),
        *("optional", "transform", "transform_each"),
    }
)
_TIMEOUT = 1.0  # seconds for a search: a pattern of a file may take exponential time


class Event(NamedTuple):
    """Something that happened while an answer was read."""

    kind: Literal["open", "chunk", "close", "malformed"]
    """A field begins; more of its text; its value is complete; its text could not be read, and is content."""
    field: str
    text: str = ""
    """Of a chunk: the text as the model wrote it. Of "malformed": the text with what surrounds it."""
    value: Any = None
    """Of "close": the value."""


@dataclass(frozen=True)
class _Delimiter:
    pattern: regex.Pattern[str]
    literals: tuple[str, ...] = ()
    """The texts that it matches; empty for a regular expression."""

    def can_grow(self, match: regex.Match[str], buffer: str) -> bool:
        """Whether more text may change a complete match."""
        if match.end() < len(buffer):
            if self.literals:
                return False
            longer = self.pattern.match(buffer + "\0", match.start(), timeout=_TIMEOUT)
            return longer is None or longer.span() != match.span() or longer.groupdict() != match.groupdict()
        return not self.literals or any(a != b and a.startswith(b) for a in self.literals for b in self.literals)


@dataclass(frozen=True)
class _Field:
    name: str
    open: _Delimiter | None
    close: _Delimiter | None
    content: str = "text"
    content_args: dict[str, Any] = field(default_factory=dict)
    repeats: bool = False
    join: str | None = None
    transform: Any = None
    transform_each: bool = False

    def value(self, text: str, captures: Mapping[str, str]) -> Any:
        """The value of the field from its text. Raises ValueError if the text is not valid."""
        content = parse_content(text, self.content, self.content_args)
        if self.transform is None:
            return content
        if not self.transform_each:
            return transformed(self.transform, {**captures, "content": content})
        if not isinstance(content, list) or not all(isinstance(item, dict) for item in content):
            raise ValueError("expected a list of objects")
        return [transformed(self.transform, {**captures, **item}) for item in content]


@dataclass(frozen=True)
class ResponseTemplate:
    """A response template that was checked. ``ResponseTemplate.from_json`` makes it."""

    defaults: dict[str, Any]
    fields: dict[str, _Field]
    anchor: _Delimiter
    """What stands in a prompt before the answer of the assistant."""

    @classmethod
    def from_json(cls, spec: Any) -> ResponseTemplate:
        """Check a template. Raises ChatTemplateError, which names what is wrong."""
        if not isinstance(spec, dict) or not isinstance(spec.get("fields"), dict) or not spec["fields"]:
            raise _invalid("it has no object 'fields'")
        if unknown := sorted(spec.keys() - _KEYS):
            raise _invalid(f"it has the unknown key {unknown[0]!r}")
        if spec.get("version", 1) != 1:
            raise _invalid(f"its version is {spec['version']!r:.40}; expected 1")
        if not isinstance(spec.get("defaults", {}), dict):
            raise _invalid("'defaults' is not an object")
        anchor = _delimiter(spec, "start_anchor", "the template")
        if anchor is None:
            raise _invalid("it has no start_anchor")
        fields = {name: _field(name, entry) for name, entry in spec["fields"].items()}
        rest = [name for name, entry in fields.items() if entry.open is None]
        if len(rest) > 1:
            raise _invalid(f"{' and '.join(rest)} have no 'open'; expected at most one such field")
        return cls(spec.get("defaults", {}), fields, anchor)

    @property
    def rest(self) -> _Field | None:
        """The field of all text that belongs to no other."""
        return next((entry for entry in self.fields.values() if entry.open is None), None)


def _invalid(why: str) -> ChatTemplateError:
    return ChatTemplateError(f"the response template is not valid: {why}")


def _delimiter(entry: Mapping[str, Any], name: str, where: str) -> _Delimiter | None:
    literal, pattern = entry.get(name), entry.get(f"{name}_pattern")
    if literal is not None and pattern is not None:
        raise _invalid(f"{where} has both {name} and {name}_pattern")
    if literal is not None:
        literals = [literal] if isinstance(literal, str) else literal
        if not isinstance(literals, list) or not literals or not all(isinstance(t, str) and t for t in literals):
            raise _invalid(f"{where}: {name} is not a text, or a list of texts")
        longest_first = sorted(set(literals), key=len, reverse=True)
        return _Delimiter(regex.compile("|".join(map(regex.escape, longest_first))), tuple(longest_first))
    if pattern is None:
        return None
    try:
        return _Delimiter(regex.compile(pattern, regex.DOTALL))
    except (regex.error, TypeError) as error:
        raise _invalid(f"{where}: {name}_pattern is not a regular expression: {error}") from None


def _field(name: str, entry: Any) -> _Field:
    where = f"the field {name!r}"
    if not isinstance(entry, dict):
        raise _invalid(f"{where} is not an object")
    if unknown := sorted(entry.keys() - _FIELD_KEYS):
        raise _invalid(f"{where} has the unknown key {unknown[0]!r}")
    content, join = entry.get("content", "text"), entry.get("join")
    if join is not None and not (isinstance(join, str) and entry.get("repeats")):
        raise _invalid(f"{where}: 'join' needs a text, and 'repeats'")
    opening, closing = _delimiter(entry, "open", where), _delimiter(entry, "close", where)
    transform = entry.get("transform")
    try:
        check_content(content, entry.get("content_args", {}))
        check_transform(transform)
    except ValueError as error:
        raise _invalid(f"{where}: {error}") from None
    if transform is None and entry.get("transform_each"):
        raise _invalid(f"{where}: transform_each needs a transform")
    captured = {name for each in (opening, closing) if each for name in each.pattern.groupindex}
    if captured and transform is None:
        raise _invalid(f"{where}: the group {min(captured)!r} of its pattern goes nowhere without a transform")
    return _Field(
        name,
        opening,
        closing,
        content,
        entry.get("content_args", {}),
        bool(entry.get("repeats")),
        join,
        transform,
        bool(entry.get("transform_each")),
    )


class ResponseReader:
    """Reads one answer while it is written."""

    def __init__(self, template: ResponseTemplate, prompt: str = "", tools: Sequence[Mapping[str, Any]] = ()) -> None:
        """prompt: what the model was given. A chat template may write the beginning of the answer, such as "<think>".
        tools: their JSON schemas give the arguments of calls their types.
        """
        self._template = template
        self._tools = tools
        self._rest = template.rest
        self._buffer = ""
        """All text of the answer. What is before ``_position`` is assigned to a field."""
        self._position = 0
        self._now = self._rest
        self._is_open = False
        self._opening = ""
        self._captures: dict[str, str] = {}
        self._is_searched = True
        """Whether delimiters are looked for. It is False after a pattern took too long."""
        self._body = ""
        self.message: dict[str, Any] = deepcopy(template.defaults)
        """The fields that are complete."""
        try:
            begun = [match.end() for match in template.anchor.pattern.finditer(prompt, timeout=_TIMEOUT)]
        except TimeoutError:
            begun = []
        self.initial_events = list(self._read(prompt[begun[-1] :], at_end=False)) if begun else []
        """What the prompt had of the answer already."""

    @property
    def is_reasoning(self) -> bool:
        """Whether the text is now in the field of the reasoning."""
        return self._now is not None and self._now.name.startswith(("reasoning", "thinking"))

    def feed(self, text: str) -> list[Event]:
        """Read more text. Text that may belong to a delimiter is held back until more of it is known."""
        return list(self._read(text, at_end=False))

    def finish(self) -> list[Event]:
        """Read what is left. ``message`` is then complete, without empty fields."""
        events = list(self._read("", at_end=True))
        defaults = self._template.defaults
        self.message = {k: v for k, v in self.message.items() if k in defaults or v not in (None, "", [], {})}
        return events

    def _read(self, text: str, at_end: bool) -> Iterator[Event]:
        self._buffer += text
        while True:
            try:
                found, held = self._next_delimiter(at_end)
            except TimeoutError:  # a pattern of the file: what is left belongs to no other field
                self._is_searched = False
                if self._now is not self._rest:
                    yield from self._close("")
                continue
            if found is None:
                end = len(self._buffer) if at_end else max(held, self._position)
                yield from self._add(self._buffer[self._position : end])
                self._position = end
                if at_end:
                    yield from self._close("")
                return
            entry, match = found
            yield from self._add(self._buffer[self._position : match.start()])
            self._position = match.end()
            captures = {name: value for name, value in match.groupdict().items() if value is not None}
            if entry is self._now:
                was_open = self._is_open
                self._captures |= captures
                yield from self._close(match[0])
                if not was_open and not match[0]:
                    return  # an empty match would be found again and again
            else:
                yield from self._close("")
                self._now, self._is_open, self._captures = entry, True, captures
                self._opening = match[0]
                yield Event("open", entry.name)

    def _next_delimiter(self, at_end: bool) -> tuple[tuple[_Field, regex.Match[str]] | None, int]:
        """The first delimiter that is certain, and the place from which on text may belong to one that is not."""
        best, best_key, held = None, None, len(self._buffer)
        for entry, delimiter, is_close in self._watched():
            match = delimiter.pattern.search(self._buffer, self._position, partial=not at_end, timeout=_TIMEOUT)
            if match is None:
                continue
            if not at_end and (match.partial or delimiter.can_grow(match, self._buffer)):
                held = min(held, match.start())
                continue
            key = (match.start(), match.start() - match.end(), is_close, entry.name)
            if best_key is None or key < best_key:
                best, best_key = (entry, match), key
        return (best if best is not None and best[1].start() < held else None) if not at_end else best, held

    def _watched(self) -> Iterator[tuple[_Field, _Delimiter, bool]]:
        """The delimiters that may come now: the end of the open field; otherwise the beginning of each."""
        if not self._is_searched:
            return
        if self._now is not None and self._now.close is not None:
            yield self._now, self._now.close, True
        if self._now is self._rest:
            yield from ((e, e.open, False) for e in self._template.fields.values() if e.open is not None)

    def _add(self, text: str) -> Iterator[Event]:
        if not text or self._now is None:
            return
        if not self._is_open:
            self._is_open = True
            yield Event("open", self._now.name)
        self._body += text
        yield Event("chunk", self._now.name, text)

    def _close(self, closing: str) -> Iterator[Event]:
        """Give the open field its value, and go back to the rest."""
        entry, body, captures = self._now, self._body, self._captures
        whole = (self._opening + body + closing).strip()
        was_open = self._is_open
        self._now, self._is_open, self._opening, self._captures, self._body = self._rest, False, "", {}, ""
        if entry is None or not was_open:
            return
        try:
            value = typed_arguments(entry.value(body, captures), self._tools)
            if entry.join is not None and not isinstance(value, str):
                raise ValueError("expected a text")
        except (ValueError, KeyError, TypeError, RecursionError):
            self._add_content(whole)
            yield Event("malformed", entry.name, whole)
            return
        if entry.join is not None:
            before = self.message.get(entry.name)
            self.message[entry.name] = value if before is None else before + entry.join + value
        elif entry.repeats:
            self.message.setdefault(entry.name, []).append(value)
        else:
            self.message[entry.name] = value
        yield Event("close", entry.name, value=value)

    def _add_content(self, text: str) -> None:
        name = self._rest.name if self._rest is not None else "content"
        before = self.message.get(name)
        self.message[name] = f"{before}\n{text}" if isinstance(before, str) and before else text
