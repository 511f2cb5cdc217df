"""The sandbox that chat templates run in: what they may use, and how much of it.

What templates in the wild expect was set by transformers' ``apply_chat_template``; the same names are here.
"""

from __future__ import annotations

import contextvars
import json
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["Budget", "ChatEnvironment", "RefusedError", "bounded"]

MAX_STEPS = 2_000_000
MAX_SIZE = 1 << 26
_MAX_BITS = 1 << 16


class RefusedError(TemplateError):
    """The template itself called ``raise_exception``."""


class Budget:
    """What one rendering may use: turns of loops and calls, and the size of a string or list it makes.

    Looked at when it is made: so what one operation makes of a width it is given ("%999999999d"), and what a macro
    or a ``set`` block writes before it ends, is not bounded in time.
    """

    current: contextvars.ContextVar[Budget] = contextvars.ContextVar("hotshoe_chat_budget")

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise SecurityError(f"it takes more than {MAX_STEPS:,} steps, so it may never end")

    def size(self, value: Any) -> Any:
        if isinstance(value, (str, list, tuple)) and len(value) > MAX_SIZE:
            raise SecurityError(f"it makes a text or list of {len(value):,} elements; {MAX_SIZE:,} are allowed")
        return value


def bounded(tree: nodes.Template) -> nodes.Template:
    """The same template, counting turns of loops, and the size of what is put together."""
    done: nodes.Template = _Bounding().visit(tree)
    return done


class _Bounding(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filter(cast(nodes.Expr, node.iter), "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, "_sized")

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        self.generic_visit(node)
        # without a node it is the filter of a block, which gets its text from there
        return node if node.node is None else _filter(node, "_sized")

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filter(node.filter, "_sized")
        return node


def _filter(node: nodes.Expr | None, name: str) -> nodes.Filter:
    made: nodes.Filter = nodes.Filter(node, name, [], [], None, None)
    if node is not None:
        made.set_lineno(node.lineno)
    return made


class _Generation(Extension):
    """``{% generation %}`` marks what an assistant says, for training; here the block is its content."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja2's sandbox, in which data cannot be changed, with the names that chat templates use."""

    intercepted_binops = frozenset({"*", "**", "+"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
        self.filters["tojson"] = _tojson
        self.filters["_counted"] = _counted
        self.filters["_sized"] = lambda value: Budget.current.get().size(value)
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda style: now().strftime(style)
        self.globals["namespace"] = _Namespace
        self.globals["dict"] = _make_dict

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = Budget.current.get()
        budget.step()
        return budget.size(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, (str, list, tuple)) and isinstance(times, int) and len(many) * times > MAX_SIZE:
                    raise SecurityError(f"it repeats {len(many)} elements {times} times; {MAX_SIZE:,} are allowed")
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _MAX_BITS:
                raise SecurityError(f"it computes a number of {bits:,} bits; {_MAX_BITS:,} are allowed")
        return Budget.current.get().size(super().call_binop(context, operator, left, right))


class _Namespace(Namespace):
    """Names beginning with an underscore could shadow what the sandbox guards."""

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
    return dict(*args, **kwargs)  # a function, because a class would offer its attributes


def _raise_exception(message: object) -> NoReturn:
    raise RefusedError(str(message))


def _counted(values: Iterable[Any]) -> Iterable[Any]:
    iterator = iter(values)  # here, so that what cannot be iterated over fails where it always did
    budget = Budget.current.get()
    return _Counted(iterator, len(values), budget) if isinstance(values, Sized) else _count(iterator, budget)


def _count(values: Iterator[Any], budget: Budget) -> Iterator[Any]:
    for value in values:
        budget.step()
        yield value


class _Counted:
    """Keeps the length, which ``loop.length`` and ``loop.last`` ask for."""

    def __init__(self, values: Iterator[Any], length: int, budget: Budget) -> None:
        self._values = values
        self._length = length
        self._budget = budget

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return _count(self._values, self._budget)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja2's own writes <, > and & as escapes, for HTML
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
