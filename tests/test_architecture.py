"""The walls of the house: imports run downward only, and what must be light is light."""

from __future__ import annotations

import ast
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


def needed(path: Path, known: set[str]) -> set[str]:
    """The modules of ``known`` that a module imports, inside its functions too; not what is for type checkers only."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
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
    """Not even one that an import inside a function hides."""
    found = modules(packages()[package])
    found.pop(package)  # its names are imported on first use
    assert circle({name: needed(path, set(found)) for name, path in found.items()}) == []


def test_a_circle_is_seen() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
