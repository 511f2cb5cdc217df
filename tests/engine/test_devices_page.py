"""docs/devices.md: its Python and its commands run as they stand there, on devices that are fakes of those named."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from hotshoe.cli import main
from hotshoe_core import DeviceType
from tests.support.fake_registry import FakeRegistry, fake

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "devices.md").read_text(encoding="utf-8")
MODEL = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with model.gguf, on a machine with two GPUs."""
    registry = FakeRegistry(fake("cuda:0"), fake("cuda:1"), fake("cpu", type=DeviceType.CPU))
    monkeypatch.setattr("hotshoe.loading.load_all", lambda **options: registry)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").symlink_to(MODEL)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_the_python_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    code = "\n".join(blocks("python"))
    exec(compile(code, "devices.md", "exec"), names)
    out = capsys.readouterr().out
    assert "input on cpu; all layers and output on cuda:0\n" in out
    assert "True LayerShare(layer='input', device='cpu', weights=" in out  # the bytes are those of the fake's layout
    assert "cuda:0 -> cuda:1" in out


def test_the_commands_run(here: Path, gguf: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> None:
    (here / "experts.gguf").symlink_to(gguf("Qwen3MoeForCausalLM"))
    n = 0
    for line in "\n".join(blocks("sh")).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] != ["hotshoe"] or words[1] in ("devices", "doctor") or "rpc://" in line:
            continue
        more = ["--max-tokens", "2"] if words[1] == "run" else []
        assert main([*words[1:], *more]) == 0, (line, capsys.readouterr().err)
        n += 1
    assert n >= 8
    assert "cuda:0" in capsys.readouterr().out


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--gpu-layers", "many"], "--gpu-layers"),
        (["--tensor-split", "3;1"], "--tensor-split"),
        (["--layer-devices", "cuda:0"], "--layer-devices"),
        (["--layer-devices", "cuda:0=0-1,cpu=1-3"], "expected DEVICE=FIRST-LAST"),
        (["--layer-devices", "cuda:0=0-1,cpu=3"], "layer 2 has no device"),
        (["--cpu-moe", "--n-cpu-moe", "2"], "not allowed with"),
    ],
    ids=str,
)
def test_options_that_cannot_be_read(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "model.gguf", "x", *args])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["--device", "cpu", "--gpu-layers", "2"],
            "--gpu-layers 2: expected a GPU or another device; the model is on cpu only",
        ),
        (["--gpu-layers", "-1"], "--gpu-layers all"),
        (["--cpu-moe"], "the model has no experts"),
        (["--layer-devices", "cuda:0=0-2"], "--layer-devices names 3 layers; expected 4"),
        (["--simulate", "gpu0=lots"], "'gpu0=lots' is not a name with a size"),
        (["--simulate", "gpu=1"], "'gpu' is a type of device, not a name\n  hint: for example gpu0=8GiB"),
        (["--simulate", "gpu0=8GiB,gpu0=8GiB"], "'gpu0' is named twice"),
        (["--simulate", "gpu0=8GiB", "--device", "cpu"], "both --device and --simulate"),
    ],
    ids=str,
)
def test_what_cannot_be_planned(args: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.gguf", *args]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_a_plan_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model.gguf", "--ctx", "256", "--simulate", "gpu0=12MiB,cpu=1GiB"]) == 0
    out = capsys.readouterr().out
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["model.gguf:", "llama,", "4", "layers,", "context", "256,", "cache", "f16"]
    rows = {line[0]: line[1] for line in lines[3:6]}
    assert rows == {"input": "cpu", "0-3": "gpu0", "output": "gpu0"}
    assert main(["plan", "model.gguf", "--simulate", "gpu0=1MiB"]) == 1
    assert "gpu0 lacks" in capsys.readouterr().out
