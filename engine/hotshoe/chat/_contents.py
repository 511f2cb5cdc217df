"""How the text of a field becomes a value: the content parsers of response templates."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import regex

__all__ = ["check_content", "check_transform", "parse_content", "transformed"]

_PLACEHOLDER = re.compile(r"\{(\w+(?:\.\w+)*)\}")
_TIMEOUT = 1.0
_MAX_INTEGER = 2**53 - 1
_MAX_DEPTH = 99
_SPACE = re.compile(r"[ \t\n\r]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[-.][A-Za-z0-9_]+)*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING = re.compile(r"""'(?:[^'\\\n\r]|\\.)*'|"(?:[^"\\\n\r]|\\.)*\"""", re.DOTALL)
_ESCAPED = re.compile(r'\\.|"', re.DOTALL)
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}


def _text(text: str, args: Mapping[str, Any]) -> str:
    return text.strip() if args.get("strip", True) else text


def _bool(text: str, args: Mapping[str, Any]) -> bool:
    return _text(text, args).lower() in ("true", "1")


def _json(text: str, args: Mapping[str, Any]) -> Any:
    """JSON. unquoted_keys, string_delims: the dialects in which some models write it."""
    try:
        return json.loads(_as_json(text, args), parse_constant=_refuse)
    except ValueError:
        if args.get("allow_non_json"):
            return _text(text, args)
        raise


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _as_json(text: str, args: Mapping[str, Any]) -> str:
    """The text with its own marks of strings and its bare keys replaced by JSON's."""
    delimiters = args.get("string_delims", [])
    if not delimiters and not args.get("unquoted_keys"):
        return text
    strings = [f"{re.escape(a)}(.*?){re.escape(b)}" for a, b in delimiters]
    key = r"(?P<key>(?<=[{,])\s*\w+\s*(?=:))" if args.get("unquoted_keys") else r"(?P<key>(?!))"
    token = re.compile("|".join([*strings, r'(?P<json>"(?:\\.|[^"\\])*")', key]), re.DOTALL)

    def replaced(match: re.Match[str]) -> str:
        if match["json"] is not None:
            return match["json"]
        if match["key"] is not None:
            return json.dumps(match["key"].strip())
        return json.dumps(next(group for group in match.groups() if group is not None))

    return token.sub(replaced, text)


def _tags(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Tags with a key and a value: ``tag_pattern`` has groups of these names."""
    found: dict[str, Any] = {}
    merged: set[str] = set()
    for match in regex.finditer(args["tag_pattern"], text, flags=regex.DOTALL, timeout=_TIMEOUT):
        key, value = match["key"], _inner(match.groupdict().get("value") or "", args)
        if key in found and args.get("merge_duplicates"):
            if key not in merged:
                merged.add(key)
                found[key] = [found[key]]
            found[key].append(value)
        else:
            found[key] = value
    return found


def _lines(text: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Lines ``key: value``."""
    found = {}
    for line in text.split(args.get("line_sep", "\n")):
        key, separator, value = _text(line, args).partition(args.get("kv_sep", ":"))
        if separator:
            found[_text(key, args)] = _inner(_text(value, args), args)
    return found


def _inner(text: str, args: Mapping[str, Any]) -> Any:
    parser = args.get("value_parser")
    return text if parser is None else parse_content(text, parser.get("name", "text"), parser.get("args", {}))


class _Calls:
    """Reads a list of calls as Python writes them: ``[get_weather(city="Paris")]``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def read(self) -> list[dict[str, Any]]:
        self._expect("[")
        calls = self._items("]", self._call)
        if self._text[self._at :].strip():
            raise ValueError("there is text after the list")
        return calls

    def _next(self, pattern: re.Pattern[str]) -> str | None:
        """What matches here, after white space."""
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches always
        match = pattern.match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[0]

    def _is_next(self, char: str) -> bool:
        self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
        found = self._text.startswith(char, self._at)
        self._at += found
        return found

    def _expect(self, char: str) -> None:
        if not self._is_next(char):
            raise ValueError(f"expected {char!r} at {self._at}")

    def _items(self, end: str, item: Callable[[], Any]) -> list[Any]:
        found: list[Any] = []
        if self._is_next(end):
            return found
        while True:
            found.append(item())
            if self._is_next(end):
                return found
            self._expect(",")

    def _call(self) -> dict[str, Any]:
        name = self._next(_NAME)
        if name is None:
            raise ValueError(f"expected the name of a function at {self._at}")
        self._expect("(")
        return {"name": name, "arguments": _once(self._items(")", self._argument))}

    def _argument(self) -> tuple[str, Any]:
        name = self._next(_NAME)
        if name is None:
            raise ValueError(f"expected the name of an argument at {self._at}")
        self._expect("=")
        return name, self._value(0)

    def _value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("lists and objects are nested too deeply")
        if (quoted := self._next(_STRING)) is not None:
            return _unquoted(quoted)
        if self._is_next("["):
            return self._items("]", lambda: self._value(depth + 1))
        if self._is_next("{"):
            return _once(self._items("}", lambda: self._pair(depth + 1)))
        if (number := self._next(_NUMBER)) is not None:
            return _number(number)
        name = self._next(_NAME)
        if name not in _CONSTANTS:
            raise ValueError(f"expected a text, number, list, object, True, False or None at {self._at}")
        return _CONSTANTS[name]

    def _pair(self, depth: int) -> tuple[str, Any]:
        key = self._next(_STRING)
        if key is None:
            raise ValueError(f"expected a text as key at {self._at}")
        self._expect(":")
        return _unquoted(key), self._value(depth)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is given twice")
    return found


def _unquoted(quoted: str) -> str:
    """The text of a literal with single or double quotes, whose escapes are JSON's."""
    body = _ESCAPED.sub(lambda m: {"\\'": "'", '"': '\\"'}.get(m[0], m[0]), quoted[1:-1])
    text: str = json.loads(f'"{body}"', strict=False)
    text.encode()  # raises UnicodeEncodeError, a ValueError, for half of a surrogate pair
    return text


def _number(text: str) -> float:
    value = float(text) if set(text) & set(".eE") else int(text) if len(text) <= 17 else math.inf
    if not math.isfinite(value) or (type(value) is int and abs(value) > _MAX_INTEGER):
        raise ValueError("a number is too large")
    return value


PARSERS: dict[str, Callable[[str, Mapping[str, Any]], Any]] = {
    "text": _text,
    "int": lambda text, args: int(_text(text, args)),
    "float": lambda text, args: float(_text(text, args)),
    "bool": _bool,
    "json": _json,
    "xml-inline": _tags,
    "kv-lines": _lines,
    "python-call-list": lambda text, _: _Calls(text).read(),
}
"""By the name in a template: a function of a field's text and its ``content_args``. They raise ValueError."""


def check_content(name: Any, args: Any) -> None:
    """Raise ValueError unless ``name`` is a parser, and ``args`` are arguments that it can use."""
    if not isinstance(name, str) or name not in PARSERS:
        raise ValueError(f"content is {name!r:.40}; expected one of {', '.join(PARSERS)}")
    if not isinstance(args, dict):
        raise ValueError("content_args is not an object")
    if name == "xml-inline":
        try:
            groups = regex.compile(args.get("tag_pattern"), regex.DOTALL).groupindex
        except (regex.error, TypeError) as error:
            raise ValueError(f"tag_pattern is not a regular expression: {error}") from None
        if "key" not in groups:
            raise ValueError("tag_pattern has no group 'key'")
    for key, default in (("line_sep", "\n"), ("kv_sep", ":")):
        if not isinstance(given := args.get(key, default), str) or not given:
            raise ValueError(f"{key} is {given!r:.40}; expected a text that is not empty")
    marks = args.get("string_delims", [])
    if not isinstance(marks, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(mark, str) and mark for mark in pair)
        for pair in marks
    ):
        raise ValueError("string_delims is not a list of pairs of texts")
    if (parser := args.get("value_parser")) is not None:
        if not isinstance(parser, dict):
            raise ValueError("value_parser is not an object")
        check_content(parser.get("name", "text"), parser.get("args", {}))


def parse_content(text: str, name: str, args: Mapping[str, Any]) -> Any:
    """The value of a text. Raises ValueError if it is not valid."""
    try:
        return PARSERS[name](text, args)
    except (SyntaxError, MemoryError, KeyError, TimeoutError, regex.error) as error:
        raise ValueError(str(error)) from error


def transformed(transform: Any, values: Mapping[str, Any]) -> Any:
    """A transform with its placeholders replaced: ``"{content.name}"`` is the value ``content["name"]``.

    Raises ValueError for a placeholder without a value.
    """
    if isinstance(transform, dict):
        return {key: transformed(value, values) for key, value in transform.items()}
    if isinstance(transform, list):
        return [transformed(value, values) for value in transform]
    if not isinstance(transform, str) or (whole := _PLACEHOLDER.fullmatch(transform)) is None:
        return transform
    value: Any = values
    for key in whole[1].split("."):
        if not isinstance(value, Mapping) or key not in value:
            raise ValueError(f"{transform} has no value")
        value = value[key]
    return value


def check_transform(transform: Any) -> None:
    """Raise ValueError for a text that mixes a placeholder with other text."""
    if isinstance(transform, dict):
        for value in transform.values():
            check_transform(value)
    elif isinstance(transform, list):
        for value in transform:
            check_transform(value)
    elif isinstance(transform, str) and _PLACEHOLDER.search(transform) and not _PLACEHOLDER.fullmatch(transform):
        raise ValueError(f"the transform {transform!r:.60} mixes a placeholder with other text")
