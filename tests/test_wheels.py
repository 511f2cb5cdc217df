"""Our wheels and source distributions: those that `make wheels` wrote to dist/, and the wheels that are installed here.

A second libggml-base, or one library under two names, would put two ggmls into a process, which then crashes. A library
that looks for its base in a folder of the machine where it was built does not find it on another machine.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest

from hotshoe_loader.binary import read_binary

ROOT = Path(__file__).parents[1]
DIST = Path(os.environ.get("HOTSHOE_TEST_WHEELS") or ROOT / "dist")
NATIVE = (".so", ".dylib", ".dll", ".pyd")
ENGINE = "hotshoe_ggml"


class Contents:
    """The files of one distribution, by their names in site-packages, and a folder with these files."""

    def __init__(self, name: str, folder: Path, files: list[str]) -> None:
        self.package = name.replace("hotshoe-ggml-", "hotshoe_ggml_").replace("hotshoe_ggml_cpu", ENGINE)
        self.folder = folder
        self.files = files

    @property
    def native(self) -> list[PurePosixPath]:
        paths = [PurePosixPath(each) for each in self.files]
        return [path for path in paths if path.name.endswith(NATIVE) or ".so." in path.name]

    def read(self, name: str) -> Path:
        return self.folder / self.package / name


def installed() -> Iterator[tuple[str, Contents]]:
    for found in metadata.distributions():
        name = found.metadata["Name"] or ""
        if name.startswith("hotshoe-ggml-"):
            yield (
                f"{name} installed",
                Contents(name, Path(str(found.locate_file(""))), [str(each) for each in found.files or ()]),
            )


def built(folder: Path) -> Iterator[tuple[str, Contents]]:
    for wheel in sorted(DIST.glob("hotshoe_ggml_*.whl")):
        name = "-".join(wheel.name.split("-")[0].split("_"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / wheel.name)
            yield wheel.name, Contents(name, folder / wheel.name, archive.namelist())


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Contents]:
    found = {**dict(installed()), **dict(built(tmp_path_factory.mktemp("wheels")))}
    if not found:
        pytest.skip("no ggml plugin is installed, and `make wheels` has not been run")
    return found


def test_one_library_each_and_one_base_in_all(distributions: dict[str, Contents]) -> None:
    for which, contents in distributions.items():
        names = [path.name for path in contents.native]
        assert len(names) == len(set(names)), which
        assert {str(path.parent) for path in contents.native} == {f"{contents.package}/lib"}, which
        bases = [name for name in names if "ggml-base" in name]
        if contents.package == ENGINE:
            assert len(bases) == 1, which
            rest = [name for name in names if name not in bases and "ggml-cpu-" not in name]
            assert [name.removeprefix("lib").partition(".")[0] for name in rest] == ["hotshoe_kernels"], which
        else:
            backend = contents.package.removeprefix("hotshoe_ggml_")
            assert [name.removeprefix("lib").partition(".")[0] for name in names] == [f"ggml-{backend}"], which


@pytest.mark.skipif(sys.platform != "linux", reason="by ELF headers")
def test_libraries_look_for_each_other_where_pip_puts_them(distributions: dict[str, Contents]) -> None:
    for which, contents in distributions.items():
        for path in contents.native:
            library = contents.read(f"lib/{path.name}")
            found = read_binary(library)
            assert found.fits, (which, library)
            if "ggml-cpu" in path.name or contents.package != ENGINE:
                assert "libggml-base.so.0" in found.needed, (which, path)
            here = str(library.parent)
            expected = here if contents.package == ENGINE else f"{here}/../../{ENGINE}/lib"
            assert set(found.paths) <= {expected}, (which, path)
            assert found.paths or path.name == "libhotshoe_kernels.so", (which, path)


def test_all_of_them_are_of_one_ggml(distributions: dict[str, Contents]) -> None:
    """The manifests name one version and one ABI of ggml; the loader compares them."""
    told = {
        which: json.loads(each.read("hotshoe-plugin.json").read_text())["ggml"] for which, each in distributions.items()
    }
    assert len({(ggml["version"], ggml["abi"]) for ggml in told.values()}) == 1, told


def test_each_carries_ggmls_licence(distributions: dict[str, Contents]) -> None:
    for which, contents in distributions.items():
        assert any(each.endswith("LICENSE.ggml") for each in contents.files), which


# dist/ as an index


def dist(pattern: str) -> Path:
    """The distribution with this name in dist/. Skips the test where `make wheels` has not been run."""
    found = list(DIST.glob(pattern))
    if not found:
        pytest.skip("`make wheels` has not been run")
    return max(found, key=lambda path: path.stat().st_mtime)


class Bare:
    """A new environment, and programs in it. They see no other program: no compiler, no CMake."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=True)
        self.programs = folder / ("Scripts" if os.name == "nt" else "bin")
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("HOTSHOE", "PYTHON", "XDG"))}
        self.environ |= {"PATH": str(self.programs), "XDG_CACHE_HOME": str(folder / "cache")}
        links = f"{DIST.resolve().as_uri()} {os.environ.get('PIP_FIND_LINKS', '')}"
        self.environ |= {"PIP_FIND_LINKS": links, "PIP_ONLY_BINARY": ":all:", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def run(self, *command: str | Path, code: int = 0) -> str:
        done = subprocess.run(command, env=self.environ, cwd=self.programs, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """An environment with hotshoe[cpu] from dist/. Only what others wrote comes from an index."""
    for name in ("hotshoe-", "hotshoe_core-", "hotshoe_ggml_cpu-"):
        dist(f"{name}*.whl")
    made = Bare(tmp_path_factory.mktemp("bare"))
    made.run(made.programs / "pip", "install", "--quiet", "hotshoe[cpu]")
    return made


def test_a_bare_environment_runs_a_model(bare: Bare) -> None:
    bare.run(bare.programs / "pip", "check")
    model = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"
    code = f"""
import hotshoe
registry = hotshoe.load_all()
print(registry.why())
with hotshoe.load_model({str(model)!r}) as model:
    print(len(model.generate("And God said", max_tokens=8, temperature=0).tokens))
"""
    why, n_tokens = bare.run(bare.programs / "python", "-c", code).splitlines()
    assert why.startswith("cpu (ggml-cpu")
    assert n_tokens == "8"


def test_the_commands_of_messages_work(bare: Bare) -> None:
    """A grammar needs a package that is not installed; after the proposed command it is used."""
    model = ROOT / "examples" / "models" / "kjv-3m-q8_0.gguf"
    command = [bare.programs / "hotshoe", "run", model, "And God", "--json-schema", "{}", "--max-tokens", "4"]
    hint = bare.run(*command, code=2).partition("pip install")
    assert hint[1]
    program, *arguments = shlex.split(hint[1] + hint[2].splitlines()[0])
    assert arguments == ["install", "hotshoe[grammar]"]
    bare.run(bare.programs / program, *arguments)
    bare.run(*command)


@pytest.mark.parametrize("name", ["hotshoe", "hotshoe_core", "hotshoe_mlx", "hotshoe_ggml_rpc"])
def test_a_source_distribution_builds_alone(name: str, tmp_path: Path) -> None:
    """It makes the same files as the checkout. Of the ggml plugins only the quickest is compiled."""
    wheel, source = dist(f"{name}-*.whl"), dist(f"{name}-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", tmp_path, source], check=True, capture_output=True)
    (made,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(made) as first, zipfile.ZipFile(wheel) as second:
        names = [{each for each in archive.namelist() if not each.endswith("/")} for archive in (first, second)]
    assert names[0] == names[1]


@pytest.mark.parametrize("name", ["cuda", "metal", "rpc", "vulkan"])
def test_a_source_distribution_contains_the_shared_build(name: str) -> None:
    source = dist(f"hotshoe_ggml_{name}-*.tar.gz")
    with tarfile.open(source) as archive:
        files = {each.partition("/")[2] for each in archive.getnames()}
    shared = {f"cmake/{path.name}" for path in (ROOT / "plugins/ggml-cpu/cmake").glob("*.*")}
    shared |= {"src/hotshoe_ggml/abi.py"} | ({"native/guarded.hpp"} if name in ("rpc", "vulkan") else set())
    assert {f"ggml-cpu/{each}" for each in shared} <= files


@pytest.mark.parametrize("pattern", ["hotshoe*.whl", "hotshoe*.tar.gz"])
def test_every_distribution_carries_our_licence(pattern: str) -> None:
    dist(pattern)
    licence = (ROOT / "LICENSE").read_bytes()
    for path in DIST.glob(pattern):
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as archive:
                found = [
                    archive.read(each) for each in archive.namelist() if each.endswith(".dist-info/licenses/LICENSE")
                ]
        else:
            with tarfile.open(path) as archive:
                file = archive.extractfile(f"{path.name.removesuffix('.tar.gz')}/LICENSE")
                found = [file.read()] if file else []
        assert found == [licence], path.name
