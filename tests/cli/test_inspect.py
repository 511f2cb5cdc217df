"""``hotshoe inspect``: the report, its text, and the command around them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from hotshoe.cli import main
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


def test_a_pattern_that_matches_nothing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--tensors"], ["--metadata"], ["--json"]):
        assert main(["inspect", str(model), "--match", "zzz*", *more]) == 1
        assert capsys.readouterr().err == "no name matches 'zzz*'\n"


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


# Hugging Face folders


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> Path:
    """A file of zeros: name: (type, shape)."""
    sizes = {"F32": 4, "BF16": 2, "F8_E4M3": 1}
    header, data = {}, 0
    for name, (kind, shape) in tensors.items():
        end = data + sizes[kind] * int(np.prod(shape))
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [data, end]}
        data = end
    raw = json.dumps(header).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(data))
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "tie_word_embeddings": True, "x": None})
    )
    first = {"model.embed_tokens.weight": ("BF16", [320, 64]), "model.norm.weight": ("F32", [64])}
    second = {"model.layers.0.mlp.up_proj.weight": ("F8_E4M3", [96, 64])}
    files = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    for file, tensors in zip(files, (first, second), strict=True):
        write_safetensors(tmp_path / file, tensors)
    weight_map = {name: file for file, names in zip(files, (first, second), strict=True) for name in names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tmp_path


def test_a_hugging_face_folder(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = as_json(capsys, checkpoint)
    assert [Path(f).name for f in report["files"]] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    assert (report["architecture"], report["family"]) == ("LlamaForCausalLM", "hotshoe.convert.llama")
    assert (report["n_parameters"], report["weight_bytes"]) == (320 * 64 + 64 + 96 * 64, 640 * 64 + 256 + 96 * 64)
    assert report["metadata"]["hidden_size"] == {"type": "integer", "value": 64}
    assert [(t["name"], t["type"], t["shape"], t["bytes"], t["file"]) for t in report["tensors"]] == [
        ("model.embed_tokens.weight", "BF16", [320, 64], 40960, 0),
        ("model.norm.weight", "F32", [64], 256, 0),
        ("model.layers.0.mlp.up_proj.weight", "F8_E4M3", [96, 64], 6144, 1),
    ]
    assert command(checkpoint, "--match", "*norm*") == 0
    out = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {"format safetensors", "family hotshoe.convert.llama", "model.norm.weight F32 64 256 B"} <= set(out)
    assert not any("up_proj" in line for line in out)


def test_one_safetensors_file(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = next(checkpoint.glob("*-00002-*"))
    report = as_json(capsys, shard)
    assert (report["n_tensors"], report["family"]) == (1, "hotshoe.convert.llama")
    alone = tmp_path / "alone"
    alone.mkdir()
    report = as_json(capsys, shard.rename(alone / "x.safetensors"))
    assert (report["n_tensors"], report["architecture"], report["family"]) == (1, None, None)


def test_a_family_that_nobody_has_written(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list of tensors is the first thing that its author needs."""
    (checkpoint / "config.json").write_text(
        r'{"architectures": ["LlamaForCausalLN"], "a": NaN, "b": ["\u001b", -Infinity]}'
    )
    report = as_json(capsys, checkpoint)
    assert report["family"] is None
    assert report["family_hint"].startswith("did you mean 'LlamaForCausalLM'?; ")
    assert report["metadata"]["a"]["value"] == "NaN"
    assert command(checkpoint) == 0
    out = capsys.readouterr().out
    assert "family        none; did you mean 'LlamaForCausalLM'?" in out
    assert "model.layers.0.mlp.up_proj.weight" in out
    assert "\x1b" not in out


def test_the_family_of_a_gguf_file(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(capsys, model)["family"] == "hotshoe.models.llama"
    unknown = write_gguf(tmp_path / "u.gguf", {"general.architecture": "lama"})
    report = as_json(capsys, unknown)
    assert report["family"] is None
    assert "docs/families.md lists" in report["family_hint"]


@pytest.mark.parametrize("name", ["x.safetensors", "folder"])
def test_what_is_neither_says_what_is_expected(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.mkdir() if name == "folder" else path.write_bytes(b"12345678{")
    with pytest.raises(ModelFileError, match=r"expected a GGUF file|not a complete safetensors file"):
        command(path)


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
