"""``hotshoe inspect``: the report, its text, and the command around them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hotshoe.cli.inspect import add_parser, describe, human_count, render, run, shorten
from hotshoe_core.errors import ModelFileError
from hotshoe_core.errors.text import printable
from hotshoe_core.gguf import GGUFFile
from tests.support.gguf_files import array, gguf_bytes, key, put, text, write_gguf


@pytest.fixture
def model(tmp_path: Path) -> Path:
    keys = {
        "llama.block_count": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.causal": True,
        "tokenizer.ggml.tokens": [f"<{i}>" for i in range(1000)],
        "tokenizer.chat_template": "{% for m in messages %}\n" * 20,
        "short": [1, 2],
    }
    rows = np.zeros((4, 2 * 34), np.uint8)
    tensors = {
        "token_embd.weight": (rows, gguf.GGMLQuantizationType.Q8_0),
        "blk.0.attn_q.weight": np.ones((4, 64), np.float32),
        "blk.1.attn_q.weight": np.ones((4, 64), np.float32),
    }
    return write_gguf(tmp_path / "m.gguf", keys, tensors)


def command(*args: str | Path) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["inspect", *map(str, args)])
    assert parsed.run is run
    return run(parsed)


def as_json(capsys: pytest.CaptureFixture[str], *args: str | Path) -> dict[str, Any]:
    assert command("--json", *args) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_totals(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = as_json(capsys, model)
    n, nbytes = 3 * 256, 4 * 68 + 2 * 1024
    assert report["architecture"] == "llama"
    assert report["files"] == [str(model)]
    assert report["file_bytes"] == model.stat().st_size
    assert (report["n_parameters"], report["weight_bytes"]) == (n, nbytes)
    assert report["bits_per_weight"] == pytest.approx(8 * nbytes / n, abs=1e-4)
    assert [(t["type"], t["n_tensors"], t["bytes"]) for t in report["types"]] == [("F32", 2, 2048), ("Q8_0", 1, 272)]
    assert report["tensors"][0]["shape"] == [4, 64]


def test_arrays_are_abbreviated_unless_full(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = as_json(capsys, model)["metadata"]["tokenizer.ggml.tokens"]
    assert tokens["abbreviated"]
    assert tokens["count"] == 1000
    assert tokens["value"] == [f"<{i}>" for i in range(8)]
    tokens = as_json(capsys, "--full", model)["metadata"]["tokenizer.ggml.tokens"]
    assert len(tokens["value"]) == 1000
    assert "abbreviated" not in tokens
    assert as_json(capsys, model)["metadata"]["short"] == {"type": "arr", "items": "i32", "count": 2, "value": [1, 2]}


@pytest.mark.parametrize(
    ("args", "keys", "tensors"),
    [
        ([], 7, 3),
        (["--metadata"], 7, None),
        (["--tensors"], None, 3),
        (["--metadata", "--tensors"], 7, 3),
        (["--match", "blk.*"], 0, 2),
        (["--match", "tokenizer.*"], 2, 0),
    ],
)
def test_sections(
    model: Path, capsys: pytest.CaptureFixture[str], args: list[str], keys: int | None, tensors: int | None
) -> None:
    report = as_json(capsys, *args, model)
    assert [len(report[k]) if k in report else None for k in ("metadata", "tensors")] == [keys, tensors]
    assert report["n_tensors"] == 3  # the totals stay those of the file


def test_text_fits_80_columns(model: Path) -> None:
    with GGUFFile(model) as file:
        lines = render(describe(file), width=80).splitlines()
    assert max(map(len, lines[1:])) <= 80  # the first is the path
    shown = {" ".join(line.split()) for line in lines}
    assert {
        "architecture llama",
        "parameters 768 (768)",
        "weights 2.3 KiB, 24.17 bits per weight",
        "F32 2 512 2.0 KiB 88.3%",
        "llama.attention.layer_norm_rms_epsilon f32 1e-06",
        "llama.causal bool true",
        "short i32[2] [1, 2]",
        "blk.0.attn_q.weight F32 4 x 64 1.0 KiB",
    } <= shown
    assert any(line.startswith("tokenizer.ggml.tokens") and line.endswith("...") for line in lines)


def test_text_in_full(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--full", "--metadata", model) == 0
    out = capsys.readouterr().out
    assert '"<999>"]' in out
    assert "{% for m in messages %}\\n" * 20 in out


def test_vocabulary_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(write_gguf(tmp_path / "v.gguf")) == 0
    out = capsys.readouterr().out
    assert "1 keys, no tensors" in out
    assert "parameters" not in out


def test_odd_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values that could break JSON or a terminal: invalid text, control characters, infinities, nested arrays."""
    keys = [
        key("\x1b[31mred", 8, text("a\x1b]0;title\x07\nb")),
        key("inf", 6, b"\x00\x00\x80\x7f"),
        key("broken", 9, array(8, 2, text("ok") + text(b"\xff\x1b"))),
        key("nested", 9, array(9, 2, array(0, 1, b"\1") + array(8, 1, text("x")))),
    ]
    path = put(tmp_path, gguf_bytes(keys))
    metadata = as_json(capsys, path)["metadata"]
    assert metadata["inf"]["value"] == "inf"
    assert metadata["broken"]["value"] == ["ok", "\\xff\x1b"]
    assert metadata["nested"]["value"] == [[1], ["x"]]
    assert command(path) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out


def test_bad_file_is_left_to_main(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="does not exist"):
        command(tmp_path / "nothing.gguf")


def test_small_pieces() -> None:
    assert [human_count(n) for n in (0, 999, 1500, 494_032_768, 7.24e9, 1e13)] == [
        "0",
        "999",
        "1.5 K",
        "494.0 M",
        "7.2 B",
        "10.0 T",
    ]
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc..."
    assert printable("ĠÜ\t\x9b\u202e") == "ĠÜ\\t\\x9b\\u202e"
