"""The contents of our wheels: those that `make wheels` wrote to dist/, and those that are installed here.

A second libggml-base, or one library under two names, would put two ggmls into a process, which then crashes. A library
that looks for its base in a folder of the machine where it was built does not find it on another machine.
"""

from __future__ import annotations

import json
import os
import sys
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
