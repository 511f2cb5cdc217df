"""examples/look.py and docs/images.md: a small trained model says what pictures show."""

from __future__ import annotations

import random
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hotshoe
from hotshoe.cli import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "images.md").read_text(encoding="utf-8")
MODEL = ROOT / "examples" / "models" / "shapes-q8_0.gguf"
FIRST_TEST = 10**9  # tools/train_shapes.py: the seeds from here on are of scenes that training never draws

sys.path.insert(0, str(ROOT / "examples"))
from shapes import ANSWERS, draw, random_scene  # noqa: E402


def test_what_it_says_is_true(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "examples" / "look.py", "--save", tmp_path / "a.png"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{len(ANSWERS)} of {len(ANSWERS)} answers are right" in done.stdout
    assert "device: " in done.stdout
    assert (tmp_path / "a.png").stat().st_size > 1000


@pytest.mark.parametrize("device", ["reference", "cpu", "mlx:cpu"])
def test_pictures_that_training_never_drew(device: str) -> None:
    if device not in [d.name for d in hotshoe.load_all().devices]:
        pytest.skip(f"no device {device!r}")
    n_right = n = 0
    with hotshoe.load_model(MODEL, device, task="text") as model:
        for i in range(8):
            scene = random_scene(random.Random(FIRST_TEST + i))
            for question, true_answer in ANSWERS.items():
                content = [{"type": "image", "image": draw(scene)}, {"type": "text", "text": question}]
                answer = model.chat([{"role": "user", "content": content}], temperature=0, max_tokens=40)
                n_right += answer.text.strip() == true_answer(scene)
                n += 1
        assert model.images is not None
        assert model.images.n_computed == 8
    assert n_right >= 0.9 * n


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    commands, program = (re.search(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("sh", "python"))
    assert commands is not None
    assert program is not None
    lines = [shlex.split(line, comments=True) for line in commands[1].splitlines()]
    subprocess.run([sys.executable, *lines[0][1:]], check=True, capture_output=True)
    assert main(lines[1][1:]) == 0
    said = capsys.readouterr().out.strip()
    exec(compile(program[1], "images.md", "exec"), {})
    number = capsys.readouterr().out.splitlines()[0].strip()
    n = said.count(" and ") + said.count(",") + 1
    assert number == f"{('No', 'One', 'Two', 'Three')[n]}."
    assert {line[1] for line in lines[2:]} == {"chat", "serve"}


def test_the_pictures_differ() -> None:
    first, second = (np.asarray(draw(random_scene(random.Random(seed)))) for seed in (1, 2))
    assert first.shape == second.shape == (112, 112, 3)
    assert (first != second).any()
