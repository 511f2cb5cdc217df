"""Every place that names the lowest Python version names the same one."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOWEST = PROJECT["project"]["requires-python"].removeprefix(">=")
PROJECTS = sorted(
    [
        *ROOT.glob("plugins/*/pyproject.toml"),
        *ROOT.glob("examples/backends/*/pyproject.toml"),
        *ROOT.glob("engine/hotshoe/cli/templates/*/pyproject.toml.in"),
    ]
)


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_every_package_requires_the_same_python(path: Path) -> None:
    assert f'requires-python = ">={LOWEST}"' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", f"Python {LOWEST} or later"),
        ("Makefile", f"Python {LOWEST} or later"),
        ("loader/hotshoe_loader/doctor.py", f"Python {LOWEST} or later"),
        ("docs/backends.md", f'requires-python = ">={LOWEST}"'),
    ],
)
def test_texts_name_that_python(name: str, text: str) -> None:
    assert text in (ROOT / name).read_text(encoding="utf-8")


def test_tools_check_for_that_python() -> None:
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{LOWEST.replace('.', '')}"
    assert PROJECT["tool"]["mypy"]["python_version"] == LOWEST
    for path in ROOT.glob("plugins/*/CMakeLists.txt"):
        found = re.findall(r"find_package\(Python (\S+)", path.read_text(encoding="utf-8"))
        assert set(found) <= {LOWEST}, path


def test_classifiers_begin_with_that_python() -> None:
    minors = [
        int(name.rpartition(".")[2])
        for name in PROJECT["project"]["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
    ]
    assert minors == list(range(int(LOWEST.partition(".")[2]), max(minors) + 1))
