"""docs/quantize.md: its commands and its Python run as they stand there."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hotshoe.cli import main
from hotshoe.quantize import FILE_TYPES
from tests.support.as_f16 import as_f16

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quantize.md").read_text(encoding="utf-8")
ROW = r"^\| (\w+) \| ([\d.]+) \| ([\d.]+|refused) \| ([\d.]+) \|$"
MODEL = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Callable[..., Path]) -> Path:
    """A folder with a model in f16, a text, and a Hugging Face folder."""
    monkeypatch.chdir(tmp_path)
    as_f16(MODEL, tmp_path / "model-f16.gguf")
    text = (ROOT / "tests" / "data" / "kjv-held-out.txt").read_text(encoding="utf-8")
    (tmp_path / "text.txt").write_text(text[:5000], encoding="utf-8")
    for name in ("examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "my-model").symlink_to(folder("LlamaForCausalLM", hidden_size=256, intermediate_size=512))
    return tmp_path


def test_the_page_runs(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    table, python = blocks("python")
    assert table.startswith("# table.py\n")
    n = 0
    for line in "\n".join(blocks("sh")).splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "hotshoe":
            assert main(words[1:]) == 0, (line, capsys.readouterr().err)
            n += 1
        else:
            assert words[:2] == ["python", "table.py"]
            monkeypatch.setattr(sys, "argv", words[1:])
            exec(compile(table, "table.py", "exec"), {})
            printed = re.findall(ROW, capsys.readouterr().out, re.MULTILINE)
            assert [row[:2] for row in printed] == [("q8_0", "8.52"), ("q4_k_m", "5.39")]
            for row in printed:
                there = next(r for r in re.findall(ROW, PAGE, re.MULTILINE) if r[0] == row[0])
                np.testing.assert_allclose([float(v) for v in row[2:]], [float(v) for v in there[2:]], rtol=5e-3)
            n += 1
    assert n == 8
    exec(compile(python, "quantize.md", "exec"), {})
    out = capsys.readouterr().out
    assert "output_norm.weight (256,) F32 -> F32" in out
    assert out.endswith("1.0\n")
    assert (here / "mine.gguf").stat().st_size > (here / "model-q4_k_m.gguf").stat().st_size


def test_the_types_of_the_table_are_types() -> None:
    rows = re.findall(ROW, PAGE, re.MULTILINE)
    assert len(rows) >= 10
    assert {row[0] for row in rows} <= set(FILE_TYPES)
    assert f"in all {len(FILE_TYPES)} types" in PAGE
