"""Our distributions agree: one version, bounds that include it, one lowest Python, one licence."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from hotshoe_loader.catalog import CATALOG
from hotshoe_loader.misspelt import VARIABLES

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOWEST = PROJECT["project"]["requires-python"].removeprefix(">=")
DISTRIBUTIONS: dict[str, Any] = {
    path.parent.relative_to(ROOT).as_posix(): tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    for path in (ROOT / "pyproject.toml", ROOT / "core/pyproject.toml", *ROOT.glob("plugins/*/pyproject.toml"))
}
VERSION = PROJECT["project"]["version"]
MAJOR, MINOR, _ = map(int, VERSION.split("."))
BOUND = f">={MAJOR}.{MINOR},<{MAJOR}.{MINOR + 1}"
PROJECTS = sorted(
    [
        ROOT / "core/pyproject.toml",
        *ROOT.glob("plugins/*/pyproject.toml"),
        *ROOT.glob("examples/backends/*/pyproject.toml"),
        *ROOT.glob("engine/hotshoe/cli/templates/*/pyproject.toml.in"),
    ]
)


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_every_package_requires_the_same_python(path: Path) -> None:
    assert f'requires-python = ">={LOWEST}"' in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("README.md", f"Python {LOWEST} or later"),
        ("Makefile", f"Python {LOWEST} or later"),
        ("loader/hotshoe_loader/doctor.py", f"Python {LOWEST} or later"),
        ("docs/backends.md", f'requires-python = ">={LOWEST}"'),
    ],
)
def test_texts_name_that_python(name: str, text: str) -> None:
    assert text in (ROOT / name).read_text(encoding="utf-8")


def test_tools_check_for_that_python() -> None:
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{LOWEST.replace('.', '')}"
    assert PROJECT["tool"]["mypy"]["python_version"] == LOWEST
    for path in ROOT.glob("plugins/*/CMakeLists.txt"):
        found = re.findall(r"find_package\(Python (\S+)", path.read_text(encoding="utf-8"))
        assert set(found) <= {LOWEST}, path


def test_classifiers_begin_with_that_python() -> None:
    minors = [
        int(name.rpartition(".")[2])
        for name in PROJECT["project"]["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", name)
    ]
    assert minors == list(range(int(LOWEST.partition(".")[2]), max(minors) + 1))


# Distributions


def ours(requirements: list[str]) -> dict[str, str]:
    """The requirements that are distributions of this repository, with their bounds."""
    found = {each.name: str(each.specifier) for each in map(Requirement, requirements)}
    names = {project["name"] for project in DISTRIBUTIONS.values()}
    return {name: ",".join(sorted(bound.split(","), reverse=True)) for name, bound in found.items() if name in names}


@pytest.mark.parametrize("folder", DISTRIBUTIONS)
def test_all_distributions_have_one_version_and_licence(folder: str) -> None:
    project = DISTRIBUTIONS[folder]
    assert project["version"] == VERSION
    assert project["license-files"] == ["LICENSE"]
    assert (ROOT / folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_modules_that_tell_a_version_tell_that_one() -> None:
    told = {
        str(path.relative_to(ROOT)): match[1]
        for pattern in ("engine/hotshoe/__init__.py", "plugins/*/src/*/__init__.py")
        for path in ROOT.glob(pattern)
        if (match := re.search(r'^__version__ = "(.*)"', path.read_text(encoding="utf-8"), re.MULTILINE))
    }
    assert len(told) > 1
    assert set(told.values()) == {VERSION}, told


@pytest.mark.parametrize("folder", [folder for folder in DISTRIBUTIONS if folder.startswith("plugins/")])
def test_a_plugin_depends_on_core_and_never_on_the_engine(folder: str) -> None:
    engine = {"hotshoe-ggml-cpu": BOUND} if folder.startswith("plugins/ggml-") and folder != "plugins/ggml-cpu" else {}
    assert ours(DISTRIBUTIONS[folder]["dependencies"]) == {"hotshoe-core": BOUND, **engine}


def test_an_upgrade_of_hotshoe_upgrades_core() -> None:
    assert ours(DISTRIBUTIONS["."]["dependencies"]) == {
        "hotshoe-core": BOUND.replace(f"{MAJOR}.{MINOR},", f"{VERSION},")
    }
    assert ours(DISTRIBUTIONS["core"]["dependencies"]) == {}


def test_an_extra_names_each_plugin() -> None:
    extras = DISTRIBUTIONS["."]["optional-dependencies"]
    for entry in CATALOG:
        assert ours(extras[entry.name]) == {entry.distribution: BOUND}


def test_commands_name_extras_that_exist() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "engine").rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"hotshoe\[(\w+)\]", source)}
    assert named
    assert named <= set(DISTRIBUTIONS["."]["optional-dependencies"])


@pytest.mark.parametrize(
    "name",
    [
        "docs/backends.md",
        "docs/models.md",
        "core/README.md",
        *(str(path.relative_to(ROOT)) for path in ROOT.glob("examples/backends/*/pyproject.toml")),
        *(str(path.relative_to(ROOT)) for path in ROOT.glob("engine/hotshoe/cli/templates/*/pyproject.toml.in")),
    ],
)
def test_examples_of_packages_have_these_bounds(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    bounds = re.findall(r"\bhotshoe(?:-core|-ggml-cpu)?(>=[\d.]+,<[\d.]+)", text)
    assert bounds
    assert set(bounds) == {BOUND}


def test_a_release_builds_every_plugin() -> None:
    """Wheels of all but two, whose source distributions are compiled with the user's SDK."""
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    built = {name for row in re.findall(r"plugins: ([^}]+) }", text) for name in row.split()}
    assert built == {path.name for path in (ROOT / "plugins").glob("ggml-*")} - {"ggml-cuda", "ggml-vulkan"}
    assert set(re.findall(r'python-version: "([\d.]+)"', text)) == {LOWEST}
    assert f"CIBW_BUILD: cp{LOWEST.replace('.', '')}-*" in text


def test_the_loader_knows_every_variable() -> None:
    """It warns about others, because they are probably misspelt."""
    found = set()
    for folder in (ROOT / "plugins").iterdir():
        found |= set(re.findall(r'env = "(HOTSHOE_\w+)"', (folder / "pyproject.toml").read_text(encoding="utf-8")))
        for path in (folder / "src").rglob("*.py"):
            if path.name != "_gen_ffi.py":
                found |= set(re.findall(r'"(HOTSHOE_(?:GGML|RPC|CUDA)\w*)"', path.read_text(encoding="utf-8")))
    for room in ("core", "loader", "engine"):
        for path in (ROOT / room).rglob("*.py"):
            found |= set(re.findall(r'"(HOTSHOE_[A-Z_]*[A-Z])"', path.read_text(encoding="utf-8")))
    assert {"HOTSHOE_DEBUG", "HOTSHOE_DATA_DIR", "HOTSHOE_API_KEY", "HOTSHOE_RPC"} <= found
    assert found <= VARIABLES
