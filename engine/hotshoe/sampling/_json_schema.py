"""Prepare JSON schemas for grammars: check them, and limit what a model could otherwise write without end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hotshoe_core.errors import GrammarError

__all__ = ["WHITESPACE", "check_length", "prepare"]

WHITESPACE = r" ?|\n {0,20}"
"""What may stand between the elements of a JSON text: a space, or a line end and an indentation."""

_MAX_CHARACTERS = 1_000_000
_MAX_INTEGER = 2**53 - 1  # RFC 8259, section 6: integers up to this are the same for every reader
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_IN_ONE = ("additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then")
_IN_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_IN_MAPPINGS = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_ANY_PROPERTY = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_COMBINE = ("$ref", "anyOf", "dependentSchemas", "if", "not", "oneOf", "properties")


def prepare(schema: Mapping[str, Any] | str) -> str:
    """Return a schema as JSON text, with limits where it has none.

    An object with ``properties`` gets no others, unless the schema says so by ``additionalProperties``, or combines
    objects (``allOf``, ``anyOf``, ``oneOf``, ``$ref``). An integer is at most 2^53 - 1 from 0, unless the schema has a
    limit.

    Raises GrammarError unless the schema is a JSON object, of at most 1,000,000 characters and not nested too deeply.
    """
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else json.loads(json.dumps(dict(schema)))
        schemas = list(_schemas(parsed))
        close = not any(_combines(s) for s in schemas)
        for s in schemas:
            _limit_integers(s)
            if close:
                _close(s)
        text = json.dumps(parsed, allow_nan=False)
    except RecursionError:
        raise GrammarError("the JSON schema is nested too deeply; expected a few hundred levels at most") from None
    except (TypeError, ValueError, OverflowError) as e:
        hint = 'for example {"type": "object"}'
        if isinstance(schema, str) and "{" not in schema:
            hint = "give a dict or JSON text, not a file's name: json.load(open(…))"
        raise GrammarError(f"the JSON schema is not JSON: {e}", hint=hint) from None
    if not isinstance(parsed, dict):
        raise GrammarError(f"the JSON schema is {text[:40]}; expected an object")
    return check_length("JSON schema", text)


def check_length(name: str, text: str) -> str:
    """Return the text. Raises GrammarError if it is too long: llguidance then ends the process or panics."""
    if len(text) > _MAX_CHARACTERS:
        raise GrammarError(f"the {name} has {len(text):,} characters; expected at most {_MAX_CHARACTERS:,}")
    return text


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and those in it. Values of ``const``, ``enum``, ``default`` and ``examples`` are not schemas."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, value in schema.items():
        if key in _IN_ONE:
            yield from _schemas(value)
        if key in _IN_LISTS and isinstance(value, list):
            for one in value:
                yield from _schemas(one)
        if key in _IN_MAPPINGS and isinstance(value, dict):
            for one in value.values():
                yield from _schemas(one)


def _combines(schema: dict[str, Any]) -> bool:
    """Whether an object has to fit several schemas, so that each may need properties that only another one names."""
    parts = schema.get("allOf", [])
    n = len(parts) if isinstance(parts, list) else 1
    return n + sum(key in schema for key in _COMBINE) > 1


def _close(schema: dict[str, Any]) -> None:
    """Allow no properties but those that are named. If a required one is not named, the schema needs others."""
    names, required = schema.get("properties"), schema.get("required", [])
    if not isinstance(names, dict) or not isinstance(required, list) or any(key in schema for key in _ANY_PROPERTY):
        return
    if all(isinstance(name, str) and name in names for name in required):
        schema["additionalProperties"] = False


def _limit_integers(schema: dict[str, Any]) -> None:
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "integer" not in kinds or "number" in kinds or "enum" in schema or "const" in schema:
        return
    lower, upper = ([schema[key] for key in keys if key in schema] for keys in (_LOWER, _UPPER))
    if not lower and all(_is_number(value) and value > -_MAX_INTEGER for value in upper):
        schema["minimum"] = -_MAX_INTEGER
    if not upper and all(_is_number(value) and value < _MAX_INTEGER for value in lower):
        schema["maximum"] = _MAX_INTEGER


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))
