"""The command line for its users: exit codes, messages without traceback, output for people and programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hotshoe
from hotshoe.cli import main
from hotshoe_core.errors.install import pip_install
from tests.support.rewrite import rewrite


def hotshoe_command(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hotshoe", *args], input=stdin, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def model(data: Path) -> str:
    return str(data / "bert-tiny-llamacpp.gguf")


def test_embed_prints_a_line_for_each_text(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", model, "the cat", "a dog"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["text"] for line in lines] == ["the cat", "a dog"]
    with hotshoe.load_model(model) as expected:
        np.testing.assert_allclose(
            [line["embedding"] for line in lines], expected.embed(["the cat", "a dog"]), atol=1e-5
        )


def test_embed_reads_lines_from_standard_input(model: str) -> None:
    done = hotshoe_command("embed", model, stdin="the cat\n\na dog\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == ["the cat", "", "a dog"]


def test_embed_writes_numpy(model: str, tmp_path: Path) -> None:
    assert main(["embed", model, "-o", str(tmp_path / "v.npy"), "the cat", "a dog", "x"]) == 0
    vectors = np.load(tmp_path / "v.npy")
    assert (vectors.shape, vectors.dtype) == ((3, 32), np.float32)


def test_texts_may_follow_options(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", model, "one", "--device", "reference", "two", "-v"]) == 0
    out = capsys.readouterr()
    assert len(out.out.splitlines()) == 2
    assert out.err.startswith("reference")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("embed", "nothing.gguf", "x"), ("nothing.gguf", "does not exist")),
        (("embed", "{folder}", "x"), ("is a folder", "hotshoe convert")),
        (("embed", "{model}", "--device", "cuda", "x"), ("cuda", pip_install("hotshoe-ggml-cuda"))),
        (("embed", "{model}", "the cat " * 100), ("tokens", "pass --truncate")),
        (("embed", "{model}", "-o", "v.txt", "x"), ("v.txt", ".npy")),
        (("embed", "{text}", "x"), ("texts.json", "GGUF")),
        (("embed", "{vocabulary}", "--threads", "0", "x"), ("--threads is 0",)),
        (("convert", "{data}"), ("config.json",)),
        (("inspect", "{text}"), ("texts.json", "GGUF")),
    ],
)
def test_wrong_input_is_one_message_and_exit_code_2(
    args: tuple[str, ...], words: tuple[str, ...], model: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "--threads" in args and hotshoe.load_all().devices[0].name != "cpu":
        pytest.skip("other backends count their own threads: hotshoe-ggml-cpu is not installed")
    places = {
        "model": model,
        "vocabulary": model,
        "folder": str(data / "bert-tiny"),
        "data": str(data),
        "text": str(data / "texts.json"),
    }
    assert main([a.format(**places) for a in args]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.startswith("hotshoe: error: ")
    assert "Traceback" not in out.err
    for word in words:
        assert word in out.err


@pytest.mark.parametrize("args", [(), ("embd",), ("embed",), ("embed", "m.gguf", "--bogus", "x")])
def test_wrong_usage(args: tuple[str, ...]) -> None:
    done = hotshoe_command(*args)
    assert done.returncode == 2
    assert "usage: hotshoe" in done.stderr


def test_help_names_every_command() -> None:
    done = hotshoe_command("--help")
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("devices", "embed", "convert", "inspect"))


def test_a_closed_pipe_is_not_an_error(model: str) -> None:
    command = f"{sys.executable} -m hotshoe inspect {model} --full | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which ``hotshoe`` is this command."""
    line = f'hotshoe() {{ {sys.executable} -m hotshoe "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=120, env=os.environ | environment, check=False
    )


@pytest.mark.parametrize(
    ("redirection", "code", "says"),
    [
        (">&-", 0, ""),
        ("> /dev/full", 2, "hotshoe: error: [Errno 28] No space left on device\n"),
        ("> /dev/full 2> /dev/full", 2, ""),
        ("< /dev/null >&- 2>&-", 0, ""),
    ],
)
def test_streams_that_are_closed_or_full(redirection: str, code: int, says: str, model: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    for command in (f"hotshoe embed {model} cat", f"hotshoe inspect {model}", "hotshoe devices"):
        done = shell(f"{command} {redirection}", PYTHONUNBUFFERED="")  # as on most machines
        assert (done.returncode, done.stderr) == (code, says), command


def test_without_an_input_stream_there_is_no_input(model: str) -> None:
    done = shell(f"hotshoe embed {model} <&-")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no text was given, and standard input is empty" in done.stderr


def test_characters_outside_ascii_are_escaped(model: str, tmp_path: Path) -> None:
    ascii_only = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    for command in ("bench", "embed", "rerank", "run"):
        assert shell(f"hotshoe {command} --help", **ascii_only).returncode == 0
    named = rewrite(Path(model), tmp_path / "m.gguf", {"general.name": "é"})
    done = shell(f"hotshoe inspect {named}", **ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\xe9" in done.stdout
    done = shell(f"echo é | hotshoe embed {model}", **ascii_only)
    assert done.returncode == 2
    assert done.stderr.startswith("hotshoe: error: the input is not ascii text")


def test_control_characters_of_a_name_are_escaped() -> None:
    done = shell("hotshoe inspect $'a\\xff\\x1b[31m.gguf'")
    assert done.returncode == 2
    assert done.stderr.startswith("hotshoe: error: a\\udcff\\x1b[31m.gguf: the file does not exist\n  hint: ")


@pytest.mark.parametrize(
    "variable",
    ["HOTSHOE_PROBE_TIMEOUT=abc", "HOTSHOE_PROBE_TIMEOUT=-1", "HOTSHOE_GGML=nowhere", "HOTSHOE_REQUIRE=\x1b[2J",
     "HOTSHOE_TRACE=/nowhere/t"],
)  # fmt: skip
def test_garbage_in_a_variable_is_one_message(variable: str, model: str) -> None:
    name, _, value = variable.partition("=")
    done = shell(f"hotshoe embed {model} cat", **{name: value})
    assert done.returncode == 2
    assert done.stderr.startswith("hotshoe: error: ")
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


def test_import_is_light() -> None:
    code = "import hotshoe, sys; print([m for m in ('numpy', 'gguf', 'cffi', 'pluggy', 'typing') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.strip() == "[]"
