"""The zoo: a new environment into which pip installs every animal, and programs that run in it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.zoo.animals import ANIMALS
from tests.zoo.species import Animal
from tests.zoo.visits import Visit, Zoo
from tests.zoo.wheels import compile_library, write_wheel


def _ggml() -> bytes:
    """The version of the ggml that hotshoe's own plugin was built with."""
    if importlib.util.find_spec("hotshoe_ggml") is None:
        return b"0.0.0"
    from hotshoe_ggml.native import build_info

    return build_info().ggml_version.encode()


def _wheel(animal: Animal, folder: Path) -> Path:
    files = {f"{animal.module}/{name}": data.replace(b"{ggml}", _ggml()) for name, data in animal.files.items()}
    for name, library in animal.libraries.items():
        data = compile_library(folder / animal.name, name, library.source, library.needs)
        files[f"{animal.module}/{name}"] = library.spoil(data)
    files[f"{animal.module}/__init__.py"] = animal.code.encode()
    entry_points = f"[hotshoe.backends]\n{animal.name} = {animal.entry or animal.module}\n"
    return write_wheel(folder, animal.distribution, files, entry_points, tag=animal.tag)


@pytest.fixture(scope="session")
def new_environment(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Zoo]:
    """``new_environment(name, wheels, plugins=True)``: a fresh virtual environment, into which pip installs wheels.

    It sees hotshoe, NumPy and the rest of what the tests' own environment holds; hotshoe's plugins only if wanted.
    """
    if sys.platform != "linux":
        pytest.skip("the zoo looks at /proc")

    def make(name: str, wheels: Iterable[Path] = (), plugins: bool = True) -> Zoo:
        folder = tmp_path_factory.mktemp(name)
        venv.create(folder / "venv", symlinks=True)
        python = folder / "venv" / "bin" / "python"
        base = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
        site = Path(sysconfig.get_path("purelib", vars=base))
        seen = folder / "seen"
        seen.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if plugins or not entry.name.startswith(("hotshoe_ggml", "hotshoe_mlx")):
                (seen / entry.name).symlink_to(entry)
        (site / "zoo.pth").write_text(f"import site; site.addsitedir({str(seen)!r})\n")  # its .pth files count too
        if wheels:
            pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--quiet"]
            options = ["--no-index", "--no-deps", "--no-compile"]
            subprocess.run([*pip, "install", *options, *wheels], check=True, capture_output=True)
        return Zoo(python, site)

    return make


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel of every animal."""
    folder = tmp_path_factory.mktemp("wheels")
    return {animal.name: _wheel(animal, folder) for animal in ANIMALS}


@pytest.fixture(scope="session")
def zoo(new_environment: Callable[..., Zoo], wheels: dict[str, Path]) -> Zoo:
    """The environment with all animals in it."""
    if importlib.util.find_spec("hotshoe_ggml") is None:
        pytest.skip("needs hotshoe-ggml-cpu, whose work the animals must not disturb")
    found = new_environment("zoo", wheels.values())
    with open(found.site / "zoo_tampered" / "libggml-tampered.so", "ab") as file:
        file.write(b"one more line")
    return found


@pytest.fixture(scope="session")
def place_of_day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("day")


@pytest.fixture(scope="session")
def day(zoo: Zoo, place_of_day: Path) -> Visit:
    """A program that loads all animals, with an empty cache."""
    return zoo.visit(place_of_day)
