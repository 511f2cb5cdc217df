"""A new user: in each situation ``hotshoe doctor`` says what to do, or that nothing is to be done."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

from hotshoe_core.errors.install import pip_install
from tests.zoo.animals import ANIMALS
from tests.zoo.species import BODY
from tests.zoo.visits import Zoo
from tests.zoo.wheels import compile_library, write_wheel

needs_ggml = pytest.mark.skipif(importlib.util.find_spec("hotshoe_ggml") is None, reason="needs hotshoe-ggml-cpu")


def doctor(zoo: Zoo, folder: Path, *arguments: str, **environ: str) -> tuple[int, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOTSHOE", "PYTHON"))}
    done = subprocess.run(
        [zoo.python, "-m", "hotshoe", "doctor", *arguments],
        cwd=folder,
        env={**kept, "XDG_CACHE_HOME": str(folder / "cache"), **environ},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, " ".join(done.stdout.split())  # whatever the lines are folded at


def gpu_plugin(folder: Path, before: str = "", after: str = "", libraries: dict[str, bytes] | None = None) -> Path:
    """A wheel with the name of the plugin for NVIDIA GPUs."""
    code = (before + BODY + after).replace("{name}", "cuda")
    files = {f"zoo_cuda/{name}": data for name, data in (libraries or {}).items()}
    files["zoo_cuda/__init__.py"] = code.encode()
    return write_wheel(folder, "hotshoe-ggml-cuda", files, "[hotshoe.backends]\nggml-cuda = zoo_cuda\n")


def test_no_plugin(new_environment, tmp_path):
    bare = new_environment("bare", plugins=False)
    code, text = doctor(bare, tmp_path)
    assert code == 1
    assert "!! cpu: found only the reference backend, which is NumPy and slow" in text
    assert text.endswith(f"To do next: {pip_install('hotshoe-ggml-cpu')}")


@needs_ggml
def test_one_plugin(new_environment, tmp_path):
    code, text = doctor(new_environment("one"), tmp_path)
    assert "ok ggml-cpu: " in text
    assert "Used by default: cpu (ggml-cpu" in text
    assert text.endswith("Healthy. There is nothing to do.")
    assert code == 0


@needs_ggml
def test_a_gpu_plugin_where_there_is_no_gpu(new_environment, tmp_path):
    after = "Provider.devices = lambda self, library: []"
    code, text = doctor(new_environment("no-gpu", [gpu_plugin(tmp_path, after=after)]), tmp_path)
    assert "cuda: no-device: it works, but finds no device on this machine" in text
    if "no GPU on the PCI bus" in text:
        assert "This machine has no GPU that it drives" in text
        assert text.endswith("Healthy. There is nothing to do.")
        assert code == 0


@needs_ggml
def test_a_gpu_plugin_whose_driver_is_missing(new_environment, tmp_path):
    """It needs a library of the driver: the verdict names the library. Without a GPU nothing is to be done."""
    library = compile_library(tmp_path / "c", "libzoo_cuda.so", "int x;", "libzoo_driver.so.1")
    before = "import ctypes, pathlib; ctypes.CDLL(str(pathlib.Path(__file__).parent / 'libzoo_cuda.so'))\n"
    wheel = gpu_plugin(tmp_path, before=before, libraries={"libzoo_cuda.so": library})
    code, text = doctor(new_environment("no-driver", [wheel]), tmp_path)
    assert "cuda: missing-dependency: " in text
    assert "libzoo_driver.so.1" in text
    if "no GPU on the PCI bus" in text:
        assert text.endswith("Healthy. There is nothing to do.")
        assert code == 0


@needs_ggml
def test_a_blocked_plugin(new_environment, tmp_path):
    code, text = doctor(new_environment("blocked"), tmp_path, HOTSHOE_BLOCK="cpu,mlx")
    assert code == 1
    assert "ggml-cpu: blocked: " in text
    assert "HOTSHOE_BLOCK: is set to 'cpu,mlx'" in text
    assert text.partition("To do next")[2].startswith((": remove 'cpu' from block= or HOTSHOE_BLOCK", " ("))


@needs_ggml
def test_a_wheel_for_another_platform(new_environment, wheels, tmp_path):
    """Installed without pip's own check: a Windows wheel, and a wheel with a library for PowerPC."""
    names = ("camel", "penguin")
    code, text = doctor(new_environment("other", [wheels[name] for name in names]), tmp_path)
    assert code == 1
    for animal in ANIMALS:
        if animal.name in names:
            assert f"!! {animal.name}: {animal.outcomes[0]}: " in text
            assert all(words in text for words in animal.says)
    assert "Used by default: cpu (ggml-cpu" in text
    assert "To do next" in text


@needs_ggml
def test_a_requirement_that_cannot_be_met(new_environment, tmp_path):
    code, text = doctor(new_environment("require"), tmp_path, HOTSHOE_REQUIRE="cuda")
    assert code == 1
    assert "HOTSHOE_REQUIRE=cuda matches no device" in text
    assert "To do next: unset HOTSHOE_REQUIRE, or install what provides cuda" in text


@needs_ggml
def test_for_machines(new_environment, tmp_path):
    code, text = doctor(new_environment("json"), tmp_path, "--json")
    report = json.loads(text)
    assert set(report) == {"hotshoe", "healthy", "next", "findings", "why", "devices", "verdicts"}
    assert report["healthy"] == (code == 0) == (report["next"] is None)
    assert report["devices"][0]["name"] == "cpu"
