"""What commands print about placement, speed and shells."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotshoe.cli import _COMMANDS, main
from hotshoe.cli.bench import Measured, scatter_remark
from hotshoe.cli.plan import _layer_rows
from hotshoe.cli.tables import bar, show, table
from hotshoe.placement.plan import LayerShare
from hotshoe_core.errors.install import pip_install

VERSE = str(Path(__file__).parents[2] / "examples" / "models" / "kjv-3m-q8_0.gguf")
MIB = 1 << 20


def test_layers_on_one_device_are_one_line() -> None:
    parts = [LayerShare("input", "cpu", MIB, 0), *(LayerShare(str(i), "cpu", 2 * MIB, MIB) for i in range(20))]
    parts += [*(LayerShare(str(i), "gpu0", 3 * MIB, MIB) for i in range(20, 28)), LayerShare("output", "gpu0", MIB, 0)]
    assert list(_layer_rows(parts)) == [
        ("input", "cpu", "1.0 MiB", "-"),
        ("0-19", "cpu", "40.0 MiB", "20.0 MiB"),
        ("20-27", "gpu0", "24.0 MiB", "8.0 MiB"),
        ("output", "gpu0", "1.0 MiB", "-"),
    ]


def test_layers_over_two_devices_are_a_line_for_each() -> None:
    parts = [LayerShare(str(i), d, MIB, 0) for i in range(3) for d in ("cpu", "gpu0")] + [
        LayerShare("3", "gpu0", MIB, 0)
    ]
    assert [row[:3] for row in _layer_rows(parts)] == [
        ("0-2", "cpu", "3.0 MiB"),
        ("0-2", "gpu0", "3.0 MiB"),
        ("3", "gpu0", "1.0 MiB"),
    ]


def test_a_plan_shows_how_full_devices_get(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", VERSE, "--simulate", "cpu=16MiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("0-3 ") for line in lines) == 1
    assert "[####" in next(line for line in lines if line.endswith("%"))
    assert main(["plan", VERSE, "--simulate", "cpu=2MiB"]) == 1
    assert "It does not fit: cpu lacks " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("used", "expected"),
    [(0, "[..........]   0%"), (5, "[#####.....]  50%"), (10, "[##########] 100%"), (25, "[##########] 250%")],
)
def test_bar(used: int, expected: str) -> None:
    assert bar(used, 10, width=10) == expected


class Screen:
    """stdout on a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> None:
        self.text += text

    def flush(self) -> None:
        pass


def test_headers_are_bold_on_a_terminal_and_cells_cannot_control_it(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", screen)
    show([*table(("NAME",), [("a\x1b[2Jb",)], "<"), "c\x1b[2J"])
    monkeypatch.undo()
    header, cell, line = screen.text.splitlines()
    assert "\x1b[1m" in header
    assert "\\x1b" not in header
    assert cell == "a\\x1b[2Jb"
    assert line == "c\\x1b[2J"


def test_scattered_numbers_get_a_remark() -> None:
    steady, scattered = Measured("pp512", 512, [100.0, 101.0, 99.0]), Measured("tg128", 128, [10.0, 20.0, 30.0])
    assert scatter_remark([]) is None
    assert scatter_remark([steady, Measured("once", 1, [5.0])]) is None
    remark = scatter_remark([steady, scattered])
    assert remark is not None
    assert remark.startswith("The repetitions of tg128 differ by 50%")
    assert "another\nprocess" in remark
    assert "--threads" in remark


def test_bench_prints_the_remark_on_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("hotshoe.cli.bench._repeat", lambda once, tokens, n: [10.0, 20.0, 30.0])
    assert main(["bench", VERSE, "-p", "4", "-n", "0", "--device", "reference"]) == 0
    out = capsys.readouterr()
    assert "pp4 " in out.out
    assert "differ by 50%" in out.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "tcsh", "powershell"])
def test_completion_knows_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in _COMMANDS)
    assert "max-tokens" in script
    assert "num-predict" not in script  # names of other programs are not proposed
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_completion_without_shtab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert pip_install("hotshoe[completion]") in capsys.readouterr().err


def test_bench_shows_what_the_backend_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hotshoe.cli.bench._repeat", lambda once, tokens, n: [10.0, 10.0])
    monkeypatch.setattr("hotshoe_core.contract.backend.Backend.tuning", lambda self: {"prefetching of q4_k": "near"})
    command = ["bench", VERSE, "-p", "4", "-n", "0", "--device", "reference"]
    assert main(command) == 0
    assert capsys.readouterr().err == ""
    assert main([*command, "-v"]) == 0
    assert capsys.readouterr().err == "prefetching of q4_k: near\n"
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tuning"] == {"prefetching of q4_k": "near"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["-p", "64", "-n", "0", "-d", "5000"],
            "--depth 5000 and --prompt 64 need 5064 tokens; the model was trained for at most",
        ),
        (["-p", "5000"], "--prompt 5000 needs 5000 tokens; the model was trained for at most"),
        (["-p", "0", "-n", "5000"], "hint: give a smaller --generate"),
    ],
)
def test_a_benchmark_longer_than_the_context(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", VERSE, *options, "--device", "reference"]) == 2
    assert words in capsys.readouterr().err


def test_a_text_longer_than_the_model_was_trained_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", VERSE, "the " * 5000, "--device", "reference"]) == 2
    said = capsys.readouterr().err
    assert "hint: shorten the text; the model was trained for at most " in said
    assert "--ctx" not in said
