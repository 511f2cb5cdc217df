"""The error tree is the one in the docstring, and messages say where and what to do next."""

from __future__ import annotations

import builtins
import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from hotshoe_core import errors
from hotshoe_core.contract.memory import BackendMemory
from hotshoe_core.eager.reference import open_reference
from hotshoe_core.errors import HotshoeError, ModelFileError, ShapeError, did_you_mean
from hotshoe_loader.verdict import Outcome, Verdict

LINE = re.compile(r"^ {4}(?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: +\((?P<builtin>\w+)\))?(?: |$)")


def drawn() -> dict[str, tuple[str | None, str | None]]:
    """The parent and the built-in base of each class in the drawing."""
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


def test_no_control_character_is_in_a_message() -> None:
    error = ModelFileError("is\n\x1b[2J odd", path="a\x1b[31m\r\u202e.gguf", hint="see \x07")
    assert str(error) == "a\\x1b[31m\\r\\u202e.gguf: is\n\\x1b[2J odd\n  hint: see \\x07"
    assert error.args == (error.message,)


def test_a_bad_file_is_named_with_field_and_byte() -> None:
    error = ModelFileError("too long", path="a.gguf", field="n_kv", offset=16)
    assert str(error) == "a.gguf, n_kv, byte 16: too long"
    assert (error.path, error.field, error.offset) == ("a.gguf", "n_kv", 16)
    assert str(ModelFileError("too long")) == "too long"


def every_error() -> list[HotshoeError]:
    """An error of each class, with a hint and its other fields."""
    memory = BackendMemory()
    memory.fail("cpu", "cache", 1 << 20, 3)
    verdict = Verdict("x", "plugin", Outcome.CRASHED, "it crashed", details={"signal": 11})
    more: dict[str, dict[str, Any]] = {
        "InsufficientMemoryError": {"memory": memory},
        "DeviceNotFoundError": {"verdicts": [verdict, Verdict("y", "library", Outcome.LOADED, "")]},
        "ModelFileError": {"path": Path("a.gguf"), "field": "n_kv", "offset": 16},
        "MetadataKeyError": {"path": Path("a.gguf"), "field": "general.name"},
    }
    classes, found = [HotshoeError], []
    for cls in classes:
        classes += cls.__subclasses__()
        if cls.__module__.startswith("hotshoe"):
            found.append(cls("what is wrong", hint="what to do", **more.get(cls.__name__, {})))
    return found


@pytest.mark.parametrize("error", every_error(), ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("pass_on", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_an_error_comes_back_from_another_process(error: HotshoeError, pass_on: Any) -> None:
    back = pass_on(error)
    assert type(back) is type(error)
    assert (str(back), back.args, vars(back)) == (str(error), error.args, vars(error))


def test_an_error_of_an_op_comes_back_without_its_tensors() -> None:
    x = open_reference().new_context().input("x", (2, 3))
    with pytest.raises(ShapeError) as caught:
        x + x.reshape(3, 2)
    assert len(caught.value.operands) == 2
    back = pickle.loads(pickle.dumps(caught.value))
    assert (type(back), str(back), back.operands) == (ShapeError, str(caught.value), ())


@pytest.mark.parametrize(
    ("known", "expected"),
    [(["llama", "qwen"], "did you mean 'llama'?"), (["x", "b"], "use one of: b, x"), ([], "none is known")],
)
def test_did_you_mean(known: list[str], expected: str) -> None:
    assert did_you_mean("lama", known) == expected
