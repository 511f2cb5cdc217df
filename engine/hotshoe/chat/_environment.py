"""The Jinja2 sandbox that chat templates run in. `_child.py` limits time and memory.

Chat templates expect the environment of transformers' ``apply_chat_template``, so this one has the same names.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

__all__ = ["ChatEnvironment", "RefusedError"]


class RefusedError(TemplateError):
    """The template called ``raise_exception``."""


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's text for training. Here, the block is replaced by its content."""

    tags = {"generation"}  # noqa: RUF012 (declared like this in Jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox with immutable data, and with the names that chat templates use.

    Set ``now``, the time that ``strftime_now`` formats, before each rendering.
    """

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.now = datetime.min
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda style: self.now.strftime(style)
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _make_dict


class _Namespace(Namespace):
    """Jinja2's namespace, without names that begin with an underscore: these could replace names that it relies on."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace may not have the attribute {str(name)!r}, which begins with an underscore")


def _make_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)  # a function, because a class would expose its attributes


def _raise_exception(message: object) -> NoReturn:
    raise RefusedError(str(message))


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja2's filter escapes <, > and & for HTML
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
