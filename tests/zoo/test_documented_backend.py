"""docs/backends.md as it stands: built, installed, tested by the kit, and a model on it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.documents import write_files
from tests.support.minilm import require_minilm
from tests.support.wheels import build_wheel
from tests.zoo.visits import Zoo

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("my-backend")
    written = write_files(ROOT / "docs" / "backends.md", folder)
    assert {"pyproject.toml", "my_backend/__init__.py", "my_backend/library.py", "test_my_backend.py", "run.py"} <= {
        path.relative_to(folder).as_posix() for path in written
    }
    return folder


@pytest.fixture(scope="module")
def environment(page: Path, new_environment: Callable[..., Zoo]) -> Zoo:
    return new_environment("documented", [build_wheel(page, page / "dist")])


def test_the_kit_passes_on_it(page: Path, environment: Zoo) -> None:
    command = [environment.python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "test_my_backend.py"]
    done = subprocess.run(command, cwd=page, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(done.stdout.split(" passed")[0].split()[-1]) > 1000


def test_a_model_runs_on_it_and_it_takes_nobodys_place(page: Path, environment: Zoo, tmp_path: Path) -> None:
    import hotshoe
    from hotshoe.convert import convert

    model = convert(require_minilm(), tmp_path / "minilm.gguf", "f16")
    (page / "more.py").write_text(
        "import sys, hotshoe\n"
        "print([d.name for d in hotshoe.load_all(block='mlx').devices])\n"
        "with hotshoe.load_model(sys.argv[1], device='mine') as model:\n"
        "    print(*model.embed('It runs.').tolist())\n"
    )

    def run(script: str) -> list[str]:
        done = subprocess.run([environment.python, script, model], cwd=page, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    why, shape = run("run.py")
    assert why.startswith("mine (my-backend, NumPy, by my_backend)")
    assert shape == "(384,)"
    names, numbers = run("more.py")
    assert names == "['cpu', 'mine', 'reference']"
    with hotshoe.load_model(model, device="reference") as reference:
        assert list(map(float, numbers.split())) == pytest.approx(reference.embed("It runs.").tolist(), abs=1e-5)
