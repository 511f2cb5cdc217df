"""Give the arguments of a call the types that the tool's JSON schema declares. Formats with tags have texts only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["typed_arguments"]


def typed_arguments(value: Any, tools: Sequence[Mapping[str, Any]]) -> Any:
    """A call, or a list of calls, with typed arguments; another value, or a call of an unknown tool, as it is."""
    if isinstance(value, list):
        return [typed_arguments(each, tools) for each in value]
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), dict):
        return value
    for tool in tools:
        declared = tool.get("function", tool)
        if isinstance(declared, Mapping) and declared.get("name") == function.get("name"):
            parameters = declared.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
            arguments = function["arguments"]
            for name in arguments.keys() & (properties or {}).keys():
                arguments[name] = _typed(arguments[name], _types((properties or {})[name]))
    return value


def _typed(value: Any, types: Sequence[str]) -> Any:
    if isinstance(value, list) and "array" not in types:  # a tag that came several times
        return [_typed(each, types) for each in value]
    if not isinstance(value, str):
        return value
    for name in types:
        try:
            return _READ[name](value)
        except (KeyError, ValueError, RecursionError):
            continue
    return value


def _types(schema: Any) -> list[str]:
    """The types that a schema allows, in its order."""
    if not isinstance(schema, Mapping):
        return []
    stated = schema.get("type")
    found = [stated] if isinstance(stated, str) else [t for t in stated or () if isinstance(t, str)]
    for combined in ("anyOf", "oneOf"):
        found += [name for choice in schema.get(combined) or () for name in _types(choice)]
    return found + (["null"] if schema.get("nullable") and "null" not in found else [])


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)  # "3.0" is an integer of JSON Schema
        if not number.is_integer():
            raise
        return int(number)


def _number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not a number of JSON")
    return int(number) if number.is_integer() and "." not in text else number


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]


def _null(text: str) -> None:
    if text.strip() not in ("null", "None"):
        raise ValueError("not null")


def _decoded(kind: type) -> Any:
    def read(text: str) -> Any:
        value = json.loads(text)
        if not isinstance(value, kind):
            raise ValueError(f"not {kind.__name__}")
        return value

    return read


_READ: dict[str, Any] = {
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "null": _null,
    "object": _decoded(dict),
    "array": _decoded(list),
}
