"""examples/talk.py: a conversation with a real model, and a clear message without its weights."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.smollm2 import INSTALL, require_smollm2

TALK = Path(__file__).parents[2] / "examples" / "talk.py"


def test_it_answers_and_names_the_device_and_the_speed() -> None:
    require_smollm2()
    command = [sys.executable, TALK, "What is a lens?", "--max-tokens", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "you:    What is a lens?\nmodel:  A lens is a" in done.stdout
    assert "device: " in done.stdout
    assert "tokens/s" in done.stdout


def test_without_the_weights_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("talk", TALK)
    assert spec is not None
    assert spec.loader is not None
    talk = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(talk)
    monkeypatch.setattr(talk, "MODELS", tmp_path)
    monkeypatch.setattr(talk.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(talk.hotshoe.HotshoeError, match="SmolLM2 are not installed") as error:
        talk.smollm2()
    assert error.value.hint == INSTALL
