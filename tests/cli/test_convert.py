"""``hotshoe convert``: its options, its defaults, and what it prints."""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hotshoe.cli import convert
from hotshoe_core.errors import ConversionError
from tests.support.tiny_bert import make_tiny_bert


@pytest.fixture(autouse=True)
def _silent(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def bar(label: str) -> Iterator[Callable[[float], None]]:
        yield lambda fraction: None

    module = types.ModuleType("hotshoe.cli.progress")
    module.bar = bar  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hotshoe.cli.progress", module)
    monkeypatch.setattr("hotshoe.cli.progress", module, raising=False)


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    convert.add_parser(parser.add_subparsers())
    args = parser.parse_args(["convert", *arguments])
    return int(args.run(args))


def test_default_name_and_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_tiny_bert(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert run("tiny") == 0
    assert capsys.readouterr().out.startswith("tiny-f16.gguf (")
    assert (tmp_path / "tiny-f16.gguf").exists()
    with pytest.raises(ConversionError, match="exists already"):
        run("tiny")
    assert run("tiny", "--overwrite") == 0
    assert run("tiny", "--type", "Q8_0") == 0
    assert (tmp_path / "tiny-q8_0.gguf").exists()


def test_output(tmp_path: Path) -> None:
    folder = make_tiny_bert(tmp_path / "tiny")
    assert run(str(folder), "-o", str(tmp_path / "out.gguf"), "--type", "f32") == 0
    assert (tmp_path / "out.gguf").exists()
