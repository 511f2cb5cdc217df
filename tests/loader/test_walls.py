"""The loader's knowledge of ggml is in one folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hotshoe_loader

FOLDER = Path(hotshoe_loader.__file__).parent


@pytest.mark.parametrize("text", ["ggml-base", "libggml", "ggml_backend_"])
def test_ggmls_files_and_symbols_are_known_in_one_folder(text):
    """Outside this folder, only texts for users contain them: docstrings, messages, the options of load_all."""
    allowed = {"options.py", "load.py"}
    for path in FOLDER.glob("*.py"):
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
        assert path.name in allowed or not any(text in string for string in strings), path.name


def test_core_does_not_mention_ggml():
    import hotshoe_core

    for name in ("contract/device.py", "contract/mapped_libraries.py", "eager/reference.py", "errors/text.py"):
        assert "ggml" not in (Path(hotshoe_core.__file__).parent / name).read_text(encoding="utf-8"), name
