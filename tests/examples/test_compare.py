"""examples/compare.py: one backend that fails or is not there is a line, and not the end."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import hotshoe

COMPARE = Path(__file__).parents[2] / "examples" / "compare.py"


@pytest.fixture
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare", COMPARE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(compare: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["compare.py", *arguments])
    return int(compare.main())


def answers(compare: ModuleType) -> Any:
    """Of made-up devices: one is off by 1 at one logit and parts at the third token, one raises."""

    def answer(path: Any, prompt: str, device: str, n_tokens: int) -> Any:
        logits, tokens = np.full((2, 8), 2, np.float32), [1, 2, 3, 4]
        if device == "bad":
            raise RuntimeError("it is on fire\nsecond line")
        if device == "near":
            logits[1, 3] += 1
            tokens[2] = 7
        return compare.Answer("made up", logits, tokens, 10.0)

    return answer


def test_differences_are_measured_and_a_failure_is_a_line(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "answer", answers(compare))
    assert run(compare, monkeypatch, "--device", "same", "bad", "near") == 1
    rows = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert list(rows) == ["device", "reference", "same", "bad", "near"]
    assert rows["same"][:5] == ["0.0e+00", "0.0e+00", "4", "of", "4"]
    assert rows["bad"] == "failed: it is on fire".split()
    assert rows["near"][:5] == ["1.0e+00", "1.2e-01", "2", "of", "4"]  # √(1/16) of 2


def test_what_is_not_installed_is_named_with_its_command_and_what_is_not_used_with_the_reason(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compare, "answer", answers(compare))
    monkeypatch.setattr(compare, "INSTALL", {**compare.INSTALL, "nobody-has-this": "pip install it"})
    everything = hotshoe.load_all()
    alone = hotshoe.load_all(allow="nothing")
    monkeypatch.setattr(hotshoe, "load_all", lambda: alone)
    assert run(compare, monkeypatch) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line)
    assert rows["nobody-has-this"] == "not installed: pip install it"
    for provider in {d.provider for d in everything.devices} & compare.INSTALL.keys():
        assert rows[provider].startswith("blocked: it is not in allow= or HOTSHOE_ALLOW, which lists nothing")


def test_the_commands_name_packages_of_this_repository(compare: ModuleType) -> None:
    for command in compare.INSTALL.values():
        folder = command.split("./")[1].split("[")[0].split()[0]
        assert (COMPARE.parents[1] / folder / "pyproject.toml").is_file()


def test_a_file_that_is_no_text_model_is_refused(
    compare: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = COMPARE.parents[1] / "tests" / "data" / "bert-tiny-llamacpp.gguf"
    assert run(compare, monkeypatch, str(model)) == 2
    assert "text" in capsys.readouterr().err
