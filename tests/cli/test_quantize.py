"""``hotshoe quantize`` and ``hotshoe imatrix``: options, what they print, exit codes."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from hotshoe.cli import main
from hotshoe_core.gguf import GGUFFile
from tests.support.gguf_files import write_gguf
from tests.support.quantized import make

pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")

ROOT = Path(__file__).parents[2]
KJV = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"


@pytest.fixture
def dense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make("dense-f16", tmp_path / "dense.gguf")


def types(path: Path) -> dict[str, str]:
    with GGUFFile(path) as file:
        return {name: info.dtype.name for name, info in file.tensors.items()}


def test_default_name_and_type(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "dense.gguf"]) == 0
    assert capsys.readouterr().out.startswith("dense-q4_k_m.gguf (")
    assert types(tmp_path / "dense-q4_k_m.gguf")["output.weight"] == "Q6_K"
    assert main(["quantize", "dense.gguf"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["quantize", "dense.gguf", "--overwrite", "--threads", "1"]) == 0


def test_the_default_name_for_a_split_model(dense: Path, tmp_path: Path) -> None:
    with GGUFFile(dense) as file:
        arrays = {name: np.array(file.array(name)) for name in file.tensors}
    write_gguf(tmp_path / "m.gguf", {}, arrays, arch="qwen2", split_max_tensors=40)
    assert main(["quantize", "m-00001-of-00002.gguf"]) == 0
    assert len(types(tmp_path / "m-q4_k_m.gguf")) == len(arrays)


def test_options(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--type", "Q5_K_S", "--output-type", "q8_0", "--token-embedding-type", "q4_k"]
    options += ["--tensor-type", "attn_v=q6_k", "--tensor-type", r"blk\.[01]\.ffn_(up|gate)=bf16"]
    assert main(["quantize", "dense.gguf", "out.gguf", *options]) == 0
    found = types(tmp_path / "out.gguf")
    expected = {"output.weight": "Q8_0", "token_embd.weight": "Q4_K", "blk.3.attn_v.weight": "Q6_K"}
    expected |= {"blk.1.ffn_up.weight": "BF16", "blk.2.ffn_up.weight": "Q5_K", "output_norm.weight": "F32"}
    assert {name: found[name] for name in expected} == expected
    assert main(["quantize", "dense.gguf", "pure.gguf", "--pure", "--leave-output"]) == 0
    assert set(types(tmp_path / "pure.gguf").values()) == {"F32", "Q4_K", "F16"}
    capsys.readouterr()
    for bad in ("attn_v", "=q8_0", "attn_v="):
        assert main(["quantize", "dense.gguf", "x.gguf", "--tensor-type", bad]) == 2
        assert "expected PATTERN=TYPE" in capsys.readouterr().err


def test_a_dry_run_prints_each_tensor_and_writes_nothing(
    dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.iterdir())
    assert main(["quantize", "dense.gguf", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(tmp_path.iterdir()) == before
    assert lines[0].split() == ["tensor", "rows", "x", "columns", "type", "new", "type", "size", "new", "size"]
    assert lines[1].split() == ["output.weight", "4", "x", "256", "f16", "q6_k", "2.0", "KiB", "840", "B"]
    assert next(line for line in lines if "output_norm" in line).split()[1:] == ["256", "f32", "1.0", "KiB"]
    assert len(lines) == len(types(dense)) + 2
    assert re.fullmatch(r"weights: .* -> .*, .* bits per weight", lines[-1])
    assert main(["quantize", "dense.gguf", "--dry-run", "--type", "iq2_xs"]) == 0
    assert re.search(r" iq2_xs .* needs an importance matrix\n", capsys.readouterr().out)


def test_the_output_may_stand_after_the_options(dense: Path) -> None:
    assert main(["quantize", "dense.gguf", "--type", "q8_0", "after.gguf"]) == 0
    assert Path("after.gguf").is_file()


def test_a_third_file_is_an_error(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["quantize", "dense.gguf", "--type", "q8_0", "one.gguf", "two.gguf"])
    assert "unexpected argument 'two.gguf'" in capsys.readouterr().err


def test_errors_are_messages(dense: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "dens.gguf", "x.gguf"]) == 2
    assert "did you mean 'dense.gguf'?" in capsys.readouterr().err
    assert main(["quantize", "dense.gguf", "x.gguf", "--imatrix", "nothing.dat"]) == 2
    assert "hint: make one: hotshoe imatrix" in capsys.readouterr().err
    assert main(["quantize", str(KJV), "x.gguf"]) == 2
    assert "--allow-requantize" in capsys.readouterr().err


def test_a_matrix_is_made_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "tests" / "data" / "kjv-held-out.txt").read_text(encoding="utf-8")
    Path("text.txt").write_text(text[:4000], encoding="utf-8")
    making = ["imatrix", str(KJV), "--text", "text.txt", "--chunk-size", "128", "--chunks", "3", "--device", "cpu"]
    assert main(making) == 0
    assert capsys.readouterr().out == "imatrix.gguf: 28 matrices, from 3 chunks of 128 tokens\n"
    assert main(making) == 2
    assert "exists already" in capsys.readouterr().err
    assert main([*making, "-o", "other.gguf"]) == 0
    options = ["--type", "q4_k_s", "--imatrix", "other.gguf", "--allow-requantize"]
    assert main(["quantize", str(KJV), "out.gguf", *options]) == 0
    fields = gguf.GGUFReader("out.gguf").fields
    assert fields["quantize.imatrix.file"].contents() == "other.gguf"
    assert fields["quantize.imatrix.dataset"].contents() == "text.txt"
    assert fields["quantize.imatrix.chunks_count"].contents() == 3
    capsys.readouterr()
    assert main([*making, "-o", "none/x.gguf"]) == 2
    assert "mkdir -p none" in capsys.readouterr().err
    making[making.index("128")] = "100000"
    assert main([*making, "-o", "long.gguf"]) == 2
    assert "was trained for" in capsys.readouterr().err
