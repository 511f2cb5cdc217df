"""docs/python.md: its program runs as it stands there, and its table has every option of load_model."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

import hotshoe
from hotshoe.cli import main
from hotshoe.load_options import LoadOptions
from tests.support.smollm2 import require_smollm2

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_program_runs_and_prints_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("hotshoe_ggml", reason="hotshoe-ggml-cpu is not installed")
    pytest.importorskip("llguidance")
    models = tmp_path / "examples" / "models"
    models.mkdir(parents=True)
    (models / "SmolLM2-135M-Instruct.Q4_1.gguf").symlink_to(require_smollm2())
    (models / "kjv-3m-q8_0.gguf").symlink_to(ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf")
    monkeypatch.chdir(tmp_path)
    for command in "".join(blocks("sh")).splitlines():
        assert main(shlex.split(command)[1:]) == 0
    capsys.readouterr()
    exec(compile("\n".join(blocks("python")), "python.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].strip() == "Paris"
    differ = re.fullmatch(r"(\d+) of 96 texts differ", printed[1])
    assert differ is not None
    with hotshoe.load_all().open("cpu") as backend:
        assert differ[1] == "0" or not backend.cache_config().reads_lists
    guesses = re.fullmatch(r"True (\d+) of (\d+) guesses were right", printed[2])
    assert guesses is not None
    assert 20 < int(guesses[1]) <= int(guesses[2])
    assert printed[3] == "31"
    assert re.fullmatch("(19|20)[0-9]{2}", printed[4])
    assert printed[5] in ("yes", "no")
    assert printed[6].startswith("cpu: ")
    assert printed[-1].startswith('{"total": ')


def test_the_table_has_every_option_and_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    rows = re.findall(r"^\| `(\w+)=.*?\| (?:`(--[\w-]+)`)?", PAGE.partition("## Texts")[0], re.MULTILINE)
    parameters = set(inspect.signature(hotshoe.load_model).parameters) - {"path", "options"}
    names = [name for name, _ in rows]
    assert set(names[: len(parameters)]) == parameters
    assert names[len(parameters) :] == list(LoadOptions.__annotations__)
    for command in ("run", "chat", "embed", "rerank", "bench", "trace", "plan"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        flags = capsys.readouterr().out
        of_text = ("--ctx", "--n-batch", "--n-ubatch", "--max-sequences", "--sequences", "--kv-dtype")
        of_text += ("--max-step-seconds", "--checkpoint-bytes", "--prefix-memory", "--prefix-disk", "--prefix-folder")
        of_text += ("--mmproj", "--max-draft")
        assert all(flag in flags for _, flag in rows if flag not in of_text), command
        if command in ("run", "chat", "plan"):
            assert all(flag in flags for _, flag in rows), command


def test_the_form_of_each_method_is_that_of_the_table() -> None:
    from hotshoe.runner.text import TextModel

    forms = {"generate": "Completion", "chat": "Completion", "stream": "Stream", "stream_chat": "Stream"}
    for method, result in forms.items():
        assert inspect.signature(getattr(TextModel, method)).return_annotation.startswith(result)
        assert f"model.{method}(" in PAGE
