"""The loader's own walls: no module needs one that needs it, and what it knows of ggml is in one room."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hotshoe_loader

ROOM = Path(hotshoe_loader.__file__).parent


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOM.rglob("*.py")):
        parts = path.relative_to(ROOM).with_suffix("").parts
        found[".".join(("hotshoe_loader", *(part for part in parts if part != "__init__")))] = path
    return found


def imports(path: Path, known: set[str]) -> set[str]:
    """The loader's modules that a module imports, inside its functions too; not what is for type checkers only."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found & known - {"hotshoe_loader"}


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """A path that ends where it began, if there is one."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for other in sorted(arrows[name]):
                if found := walk(other, [*path, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in sorted(arrows) if (found := walk(name, []))), [])


def test_there_is_no_circle_of_imports():
    found = modules()
    assert circle({name: imports(path, set(found)) for name, path in found.items()}) == []


def test_a_circle_is_seen():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


@pytest.mark.parametrize("words", ["ggml-base", "libggml", "ggml_backend_"])
def test_ggmls_files_and_symbols_are_known_in_one_room(words):
    """Outside of it they are named in what users read only: docstrings, messages, the options of load_all."""
    allowed = {"options.py", "load.py"}
    for path in ROOM.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        strings = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
        ]
        assert path.name in allowed or not any(words in string for string in strings), path.name


def test_core_says_nothing_of_ggml():
    import hotshoe_core

    for name in ("device.py", "mapped_libraries.py", "reference.py", "text.py"):
        assert "ggml" not in (Path(hotshoe_core.__file__).parent / name).read_text(encoding="utf-8"), name
