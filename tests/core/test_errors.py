"""The tree of errors is the one drawn in its docstring, and messages carry where and what next."""

from __future__ import annotations

import builtins
import re

import pytest

from hotshoe_core import errors
from hotshoe_core.errors import HotshoeError, ModelFileError, did_you_mean

LINE = re.compile(r"^ {4}(?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: +\((?P<builtin>\w+)\))?(?: |$)")


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """Parent and built-in base of each class in the drawing."""
    found: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if match and match["name"].endswith("Error"):
            depth = len(match["branch"]) // 4
            path[depth:] = [match["name"]]
            found[match["name"]] = (path[depth - 1] if depth else None, match["builtin"])
    return found


def test_the_drawing_is_the_tree() -> None:
    classes = {n: c for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, HotshoeError)}
    tree = drawn()
    assert tree.keys() == classes.keys()
    assert classes.keys() <= set(errors.__all__)
    for name, (parent, builtin) in tree.items():
        bases = [b.__name__ for b in classes[name].__bases__]
        assert bases == [b for b in (parent or "Exception", builtin) if b], name
        assert builtin is None or hasattr(builtins, builtin)


def test_a_hint_stands_on_a_line_of_its_own() -> None:
    assert str(HotshoeError("no")) == "no"
    assert str(HotshoeError("no", hint="yes")) == "no\n  hint: yes"


def test_a_bad_file_is_named_with_field_and_byte() -> None:
    error = ModelFileError("too long", path="a.gguf", field="n_kv", offset=16)
    assert str(error) == "a.gguf, n_kv, byte 16: too long"
    assert (error.path, error.field, error.offset) == ("a.gguf", "n_kv", 16)
    assert str(ModelFileError("too long")) == "too long"


@pytest.mark.parametrize(
    ("known", "expected"),
    [(["llama", "qwen"], "did you mean 'llama'?"), (["x", "b"], "known: b, x"), ([], "none is known")],
)
def test_did_you_mean(known: list[str], expected: str) -> None:
    assert did_you_mean("lama", known) == expected
