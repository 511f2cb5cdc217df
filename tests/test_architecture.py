"""The walls of the house: imports run downward only, and what must be light is light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CORE, LOADER, ENGINE = "hotshoe_core", "hotshoe_loader", "hotshoe"

# Who may import whom, besides itself. Whatever else calls itself hotshoe… is a plugin, which may import core only.
MAY: dict[str, set[str]] = {CORE: set(), LOADER: {CORE}, ENGINE: {CORE, LOADER}}


def packages() -> dict[str, Path]:
    """Import name and folder of each of our packages."""
    found = {CORE: ROOT / "core" / CORE, LOADER: ROOT / "loader" / LOADER, ENGINE: ROOT / "engine" / ENGINE}
    for plugin in sorted((ROOT / "plugins").iterdir()):
        found |= {folder.name: folder for folder in (plugin / "src").glob("*") if folder.name.isidentifier()}
    return {name: folder for name, folder in found.items() if folder.is_dir()}


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, also of those inside functions and by importlib with a plain string."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Call) and node.args:
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            first = node.args[0]
            if name in ("import_module", "__import__", "find_spec") and isinstance(first, ast.JoinedStr):
                first = first.values[0]
            if name in ("import_module", "__import__", "find_spec") and isinstance(first, ast.Constant):
                yield node.lineno, str(first.value)


def upward(package: str, source: str, plugins: set[str]) -> list[str]:
    """The imports of ``source``, part of ``package``, that the walls do not allow."""
    allowed = {package, *(MAY.get(package, {CORE}))}
    if package in plugins:
        # Plugins of one family share an engine: hotshoe_ggml_cuda may build on hotshoe_ggml.
        allowed |= {other for other in plugins if package.startswith(f"{other}_")}
    wrong = []
    for line, name in imports(ast.parse(source)):
        top = name.partition(".")[0]
        if (top == ENGINE or top.startswith("hotshoe_")) and top not in allowed:
            wrong.append(f"line {line}: {package} imports {name}")
    return wrong


@pytest.mark.parametrize("package", packages())
def test_imports_run_downward(package):
    found = packages()
    plugins = set(found) - set(MAY)
    wrong = []
    for path in sorted(found[package].rglob("*.py")):
        rows = upward(package, path.read_text(encoding="utf-8"), plugins)
        wrong += [f"{path.relative_to(ROOT)} {row}" for row in rows]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("package", "source"),
    [
        (CORE, "import hotshoe"),
        (CORE, "from hotshoe.nn import Linear"),
        (CORE, "def f():\n    from hotshoe_loader import load_all"),
        (LOADER, "from hotshoe_ggml import x"),
        (LOADER, "import importlib\nimportlib.import_module('hotshoe_ggml.native')"),
        (LOADER, "import_module(f'hotshoe_mlx{x}')"),
        (LOADER, "import hotshoe.cli"),
        (ENGINE, "import hotshoe_ggml"),
        ("hotshoe_ggml", "import hotshoe_loader"),
        ("hotshoe_ggml", "import hotshoe"),
        ("hotshoe_ggml", "import hotshoe_ggml_cuda"),
        ("hotshoe_mlx", "import hotshoe_ggml"),
    ],
)
def test_an_arrow_that_runs_up_is_seen(package, source):
    assert upward(package, source, {"hotshoe_ggml", "hotshoe_ggml_cuda", "hotshoe_mlx"})


@pytest.mark.parametrize(
    ("package", "source"),
    [
        (CORE, "import numpy, hotshoe_core.ops"),
        (LOADER, "from hotshoe_core.contract.device import Device"),
        (ENGINE, "from hotshoe_loader import load_all\nfrom hotshoe.nn import Linear"),
        ("hotshoe_ggml_cuda", "from hotshoe_ggml import provider\nimport hotshoe_core"),
    ],
)
def test_an_arrow_that_runs_down_is_allowed(package, source):
    assert not upward(package, source, {"hotshoe_ggml", "hotshoe_ggml_cuda", "hotshoe_mlx"})


# Private names


def private_imports(package: str, source: str, known: set[str]) -> set[str]:
    """The modules and names with a leading underscore that ``source`` imports from other packages of ``known``."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{name}" for name in names if name.startswith("_"))]
        for name in names:
            top, *rest = name.split(".")
            if top in known and top != package and any(part.startswith("_") for part in rest):
                found.add(name)
    return found


@pytest.mark.parametrize("package", packages())
def test_packages_import_only_public_names_of_each_other(package: str) -> None:
    found = packages()
    wrong: set[str] = set()
    for path in found[package].rglob("*.py"):
        wrong |= private_imports(package, path.read_text(encoding="utf-8"), set(found))
    assert not wrong


def test_a_private_import_is_seen() -> None:
    known = {CORE, LOADER}
    assert private_imports(LOADER, "from hotshoe_core.gguf._file import x", known) == {"hotshoe_core.gguf._file"}
    assert private_imports(LOADER, "from hotshoe_core.ops import _x", known) == {"hotshoe_core.ops._x"}
    assert private_imports(LOADER, "import hotshoe_core.gguf._file", known) == {"hotshoe_core.gguf._file"}
    assert private_imports(CORE, "from hotshoe_core.gguf._file import x", known) == set()


# The folders of core

CORE_FOLDERS = ("errors", "tensors", "gguf", "ops", "graphs", "contract", "eager", "inspect", "testing")


def test_the_folders_of_core_import_only_folders_before_them() -> None:
    """At run time, also inside functions. What only type checkers read is named in core's docstring."""
    folder = packages()[CORE]
    assert {path.name for path in folder.iterdir() if path.is_dir()} - {"__pycache__"} == set(CORE_FOLDERS)
    known = modules(folder)
    wrong = []
    for name, path in known.items():
        if name == CORE:
            continue
        floor = CORE_FOLDERS.index(name.split(".")[1])
        for other in needed(path, set(known)) - {CORE}:
            if CORE_FOLDERS.index(other.split(".")[1]) > floor:
                wrong.append(f"{name} imports {other}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import hotshoe_core", ["numpy", "gguf", "pluggy", "hotshoe_loader"]),
        ("import hotshoe_core.contract.device", ["numpy", "gguf", "pluggy", "importlib.metadata"]),
        ("import hotshoe_core.contract.plugin", ["numpy", "gguf"]),
        ("import hotshoe_loader", ["numpy", "gguf", "pluggy", "importlib.metadata", "ctypes"]),
        ("from hotshoe_loader import load_all, Registry, Verdict, Outcome", ["numpy", "gguf", "pluggy"]),
        ("from hotshoe_loader.find import find_plugins; find_plugins()", ["numpy", "gguf", "pluggy", "ctypes"]),
        ("import hotshoe_loader.vet, hotshoe_loader.rank, hotshoe_loader.registry", ["numpy", "gguf", "pluggy"]),
    ],
)
def test_what_is_light_stays_light(statement, unwanted):
    """In a process of its own: importing this does not import that."""
    paths = [str(ROOT / room) for room in ("core", "loader", "engine")]
    code = (
        f"import sys; sys.path[:0] = {paths!r}; before = set(sys.modules)\n{statement}\n"
        f"print(*[name for name in {unwanted!r} if name in sys.modules and name not in before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_the_loader_works_with_nothing_else_installed():
    """Without site-packages there is no NumPy, no pluggy, no plugin: the devices can still be listed."""
    code = (
        f"import sys; sys.path[:0] = {[str(ROOT / room) for room in ('core', 'loader')]!r}\n"
        "import hotshoe_loader; print(hotshoe_loader.load_all().devices[0].name, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["reference", "False"]


# Circles


def modules(package: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join((package.name, *(part for part in parts if part != "__init__")))] = path
    return found


def needed(path: Path, known: set[str], *, for_types: bool = False) -> set[str]:
    """The modules of ``known`` that a module imports, also inside functions. for_types: also for type checkers only."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if not for_types and isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & known
            found.update(inside or {node.module})
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found & known


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """A path that ends where it began, if there is one."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for other in sorted(arrows[name]):
                if found := walk(other, [*path, name]):
                    return found
            done.add(name)
        return []

    return next((found for name in sorted(arrows) if (found := walk(name, []))), [])


@pytest.mark.parametrize("package", packages())
def test_there_is_no_circle_of_imports(package: str) -> None:
    """Not even one that an import inside a function hides; in the engine, not even one for type checkers only."""
    found = modules(packages()[package])
    found.pop(package)  # its names are imported on first use
    arrows = {name: needed(path, set(found), for_types=package == ENGINE) for name, path in found.items()}
    assert circle(arrows) == []


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


# What the loader knows of ggml

# The modules outside loader/hotshoe_loader/ggml that import from it, and what they import.
KNOWS_GGML = {
    "activate": {"native_result", "score"},
    "admit": {"file_names", "verdicts", "without_plugin"},
    "cache": {"file_names"},
    "child_steps": {"library_abi", "probe_libraries", "vet_libraries"},
    "survey": {"known_folders", "verdicts", "without_plugin"},
    "texts": {"file_names"},
    "vet_files": {"file_names"},
}


def test_few_modules_of_the_loader_import_its_knowledge_of_ggml() -> None:
    """Its docstring says why the loader knows ggml. A new import needs a line in the list above."""
    prefix = f"{LOADER}.ggml"
    found: dict[str, set[str]] = {}
    for path in sorted(packages()[LOADER].glob("*.py")):
        names = {name for _, name in imports(ast.parse(path.read_text(encoding="utf-8")))}
        if inner := {name.removeprefix(prefix).lstrip(".") for name in names if f"{name}.".startswith(f"{prefix}.")}:
            found[path.stem] = inner
    assert found == KNOWS_GGML


# The ggml engine and its CPU

GGML = "hotshoe_ggml"
GGML_LEVELS = (
    ("abi", "parallel", "_gen_ffi", "uuids"), ("native",), ("claims", "lowering"), ("memory",), ("unit",),
    ("weights", "precision", "run"), ("quirks",), ("cpu",), ("open_units",), ("backend",), ("provider",),
)  # fmt: skip
"""The files and folders of the engine from the bottom up: a level imports only lower ones, and itself."""


def test_only_the_opening_of_units_imports_the_cpu_of_ggml() -> None:
    """An engine file that asks for the CPU is a branch that another device with kernels of its own would need too."""
    found = modules(packages()[GGML])
    users = {name for name, path in found.items() if any(f"{GGML}.cpu" in n for n in needed(path, set(found)))}
    assert {name for name in users if not name.startswith(f"{GGML}.cpu")} == {f"{GGML}.open_units"}


def test_ggml_has_no_circle_not_even_for_type_checkers() -> None:
    found = modules(packages()[GGML])
    found.pop(GGML)
    assert circle({name: needed(path, set(found), for_types=True) for name, path in found.items()}) == []


def test_the_levels_of_ggml() -> None:
    found = modules(packages()[GGML])
    found.pop(GGML)
    level = {name: i for i, names in enumerate(GGML_LEVELS) for name in names}
    wrong = [
        f"{name} imports {other}"
        for name, path in found.items()
        for other in needed(path, set(found), for_types=True)
        if level[other.split(".")[1]] > level[name.split(".")[1]]
    ]
    assert not wrong, "\n".join(wrong)


def test_the_engine_imports_only_public_modules_of_the_loader() -> None:
    """Those that the docstring of hotshoe_loader lists."""
    tree = ast.parse((packages()[LOADER] / "__init__.py").read_text(encoding="utf-8"))
    listed = (ast.get_docstring(tree) or "").partition("Public modules")[2].partition("How load_all works")[0]
    public = set(re.findall(r"^    (\w+)  ", listed, re.MULTILINE))
    used = {
        name.split(".")[1]
        for path in packages()[ENGINE].rglob("*.py")
        for _, name in imports(ast.parse(path.read_text(encoding="utf-8")))
        if name.startswith(f"{LOADER}.")
    }
    assert used <= public
