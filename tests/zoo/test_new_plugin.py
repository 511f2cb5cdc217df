"""Plugins that ``hotshoe new-plugin`` writes: built, installed, found, and tested by their own tests."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hotshoe.cli.new_plugin import names_for, write_plugin
from hotshoe_loader import load_all
from tests.support.documents import write_files
from tests.support.minilm import require_minilm
from tests.zoo.visits import Zoo

ROOT = Path(__file__).parents[2]
BACKEND, FAMILY, EMPTY, FULL = PLUGINS = ("acme-npu", "acme-llm", "acme-libs", "acme-cpu-libs")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One plugin of each kind, and one of ``--libraries`` that contains a library, a copy of hotshoe-ggml-cpu's."""
    folder = tmp_path_factory.mktemp("packages")
    for name, kind in zip(PLUGINS, ("backend", "family", "libraries", "libraries")):
        write_plugin(names_for(name, kind), kind, folder / name)
    if importlib.util.find_spec("hotshoe_ggml") is None:
        pytest.skip("needs hotshoe-ggml-cpu, whose engine drives libraries")
    from hotshoe_ggml.native import PACKAGE_DIR

    (device,) = load_all(require="cpu").select("cpu")
    assert device.library is not None
    module = folder / FULL / "hotshoe_acme_cpu_libs"
    shutil.copy(device.library, module / "lib" / f"libggml-acme_cpu_libs{device.library.suffix}")
    theirs = json.loads((PACKAGE_DIR / "hotshoe-plugin.json").read_text(encoding="utf-8"))["ggml"]
    ggml = {key: theirs[key] for key in ("version", "abi")}  # what stamp.py would say
    manifest = json.loads((module / "hotshoe-plugin.json").read_text(encoding="utf-8")) | {"ggml": ggml}
    (module / "hotshoe-plugin.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def environment(packages: Path, new_environment: Callable[..., Zoo]) -> Zoo:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs hatchling, with which the packages are built: pip install hatchling")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "-w", packages / "dist"]
    sources = [packages / name for name in PLUGINS]
    subprocess.run([*pip, "wheel", *options, *sources], check=True, capture_output=True)
    return new_environment("new-plugins", (packages / "dist").glob("*.whl"))


def run(environment: Zoo, folder: Path, *arguments: str | Path, **environ: str) -> str:
    command = [environment.python, *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def n_passed(environment: Zoo, folder: Path, *arguments: str, **environ: str) -> int:
    out = run(environment, folder, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments, **environ)
    return int(out.split(" passed")[0].split()[-1])


def test_the_page_shows_the_backend_that_is_written(tmp_path: Path) -> None:
    write_plugin(names_for("my-backend", "backend"), "backend", tmp_path / "written")
    shown = {
        path.relative_to(tmp_path / "shown").as_posix(): path.read_text(encoding="utf-8")
        for path in write_files(ROOT / "docs" / "backends.md", tmp_path / "shown")
    }
    del shown["run.py"]
    made = tmp_path / "written"
    files = [p.relative_to(made).as_posix() for p in made.rglob("*") if p.is_file() and p.name != "README.md"]
    assert shown == {name: (made / name).read_text(encoding="utf-8") for name in files}


def test_the_wheels_say_what_they_hold(packages: Path, environment: Zoo) -> None:
    """A wheel with a library is for one platform; the others are for all."""
    for wheel in (packages / "dist").glob("*.whl"):
        assert wheel.name.endswith("-py3-none-any.whl") == (not wheel.name.startswith("hotshoe_acme_cpu_libs")), (
            wheel.name
        )


def test_the_backend_passes_the_kit(packages: Path, environment: Zoo, tmp_path: Path) -> None:
    """A third of the kit, from all of its classes. Other tests run the whole kit on core's own such backends."""
    (tmp_path / "a_third.py").write_text("def pytest_collection_modifyitems(items): items[:] = items[::3]\n")
    assert n_passed(environment, packages / BACKEND, "-p", "a_third", PYTHONPATH=str(tmp_path)) > 1000


def test_the_family_passes_its_test_on_every_device(packages: Path, environment: Zoo) -> None:
    """Those of the other new plugins among them."""
    assert n_passed(environment, packages / FAMILY, HOTSHOE_BLOCK="mlx") == 4


def test_the_libraries_have_the_right_verdict(packages: Path, environment: Zoo) -> None:
    both = [f"{name}/tests/test_verdict.py" for name in (EMPTY, FULL)]  # the kit is run on hotshoe-ggml-cpu itself
    assert n_passed(environment, packages, "--import-mode=importlib", *both, HOTSHOE_BLOCK="mlx") == 2
    out = run(environment, packages, "-m", "hotshoe", "devices", "--json", HOTSHOE_BLOCK="mlx")
    assert {f"{FULL}:0", BACKEND} <= {d["name"] for d in json.loads(out)["devices"]}
    verdicts = {v["candidate"]: v for v in json.loads(out)["verdicts"]}
    assert {name: verdicts[name]["outcome"] for name in (BACKEND, EMPTY, FULL)} == {
        BACKEND: "available",
        EMPTY: "missing-dependency",
        FULL: "available",
    }
    assert verdicts["ggml-cpu"]["outcome"] == "available"


def test_a_model_runs_on_it_and_it_takes_nobodys_place(packages: Path, environment: Zoo, tmp_path: Path) -> None:
    import hotshoe
    from hotshoe.convert import convert

    model = convert(require_minilm(), tmp_path / "minilm.gguf", "f16")
    write_files(ROOT / "docs" / "backends.md", tmp_path)
    script = (tmp_path / "run.py").read_text(encoding="utf-8").replace("my-backend", BACKEND)
    (tmp_path / "run.py").write_text(
        f"{script}    print(*model.embed('It runs.').tolist())\n"
        f"print([d.name for d in hotshoe.load_all(block=['mlx', '{FULL}']).devices])\n"
    )
    why, shape, numbers, names = run(environment, tmp_path, "run.py", model).splitlines()
    assert why.startswith(f"{BACKEND} (NumPy)")
    assert shape == "(384,)"
    assert names == f"['cpu', '{BACKEND}', 'reference']"
    with hotshoe.load_model(model, device="reference") as reference:
        assert list(map(float, numbers.split())) == pytest.approx(reference.embed("It runs.").tolist(), abs=1e-5)
