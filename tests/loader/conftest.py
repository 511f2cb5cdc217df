"""Fake installations for the loader's tests: distributions with entry points, and tiny native libraries."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hotshoe_core.errors import install
from hotshoe_loader import Registry, activate, find, load, probe
from hotshoe_loader.child_steps import probe_plugin
from hotshoe_loader.ggml import score
from hotshoe_loader.report import Job, Report
from tests.support.fake_plugins import DRIVER, GOOD, NATIVE


@pytest.fixture(scope="session", autouse=True)
def own_ggml_first() -> None:
    """Load hotshoe's own ggml first: some tests load a made-up libggml-base, after which no CPU could be opened."""
    with contextlib.suppress(ImportError):
        from hotshoe_ggml.native import load_cpu

        load_cpu()


@pytest.fixture(autouse=True)
def installed_from_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hints name distributions, not folders, wherever these tests run. tests/core/test_install.py tests both."""
    monkeypatch.setattr(install, "_checkout", lambda: None)


class Site:
    """A folder on sys.path into which fake distributions are installed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modules: list[str] = []

    def install(
        self, name: str, code: str | None, *, version: str = "1.0", entry: str | None = None, value: str | None = None
    ) -> None:
        """Installs distribution ``name``: its module holds ``code`` (None: no module), its entry point names it."""
        module = name.replace("-", "_")
        self.modules.append(module)
        if code is not None:
            (self.path / f"{module}.py").write_text(textwrap.dedent(code))
        self.metadata(name, version, f"[{find.GROUP}]\n{entry or name} = {value or module}\n")

    def metadata(self, name: str, version: str, entry_points: str | bytes | None, site: Path | None = None) -> Path:
        folder = (site or self.path) / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        if entry_points is not None:
            data = entry_points if isinstance(entry_points, bytes) else entry_points.encode()
            (folder / "entry_points.txt").write_bytes(data)
        return folder

    def probe(self, job: Job) -> Report:
        """A probe in this process, which has not imported the plugin when a backend is opened."""
        report = probe_plugin(job)
        for module in self.modules:
            sys.modules.pop(module, None)
        return report

    def good(self, name: str = "acme", arguments: str = "", **keywords: str) -> None:
        self.install(name, GOOD.replace("{arguments}", arguments), **keywords)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty site. What is really installed is not seen, nor the environment's HOTSHOE variables.

    Probes run in this process and are not kept, which is quick: the fixture ``probes`` has the real ones.
    """
    path = tmp_path / "site"
    path.mkdir()
    fake = Site(path)
    monkeypatch.syspath_prepend(str(path))
    monkeypatch.setattr(find, "_search_path", lambda: [str(path)])
    monkeypatch.setattr(probe, "_probe_now", lambda jobs, limit: [fake.probe(job) for job in jobs])
    # Probes in this process leave each test's own libggml-base in it; test_lifecycle has processes for that.
    monkeypatch.setattr("hotshoe_loader.ggml.verdicts.other_bases", lambda core: [])
    monkeypatch.setattr(score, "_processor_flags", frozenset)  # scores here are made up
    for name in ("PREFER", "REQUIRE", "BLOCK", "ALLOW", "PATH", "SYSTEM", "PROBE_TIMEOUT"):
        monkeypatch.delenv(f"HOTSHOE_{name}", raising=False)
    monkeypatch.setenv("HOTSHOE_CACHE_DIR", "off")
    _forget()
    yield fake
    _forget()
    for module in fake.modules:
        sys.modules.pop(module, None)


@pytest.fixture
def probes(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Run probes in child processes and keep their reports, as for a user. Returns the folder of the reports."""
    monkeypatch.setattr(probe, "_probe_now", _REAL_PROBE)
    monkeypatch.setenv("HOTSHOE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "probes"


_REAL_PROBE = probe._probe_now


def _forget() -> None:
    load._registries.clear()
    load._surveys.clear()
    activate._imported.clear()
    activate._changes.clear()
    activate._native.clear()
    activate._manager = None


@pytest.fixture
def verdicts() -> Callable[[Registry], dict[str, str]]:
    """Outcomes by candidate, without those that are not installed."""

    def by_name(registry: Registry) -> dict[str, str]:
        return {
            verdict.candidate: verdict.outcome.value
            for verdict in registry.verdicts
            if verdict.outcome.value != "not-installed"
        }

    return by_name


class Natives:
    """Compiles tiny libraries with the names of ggml's."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self.folder = folder
        self._compiler = compiler
        self.library("libggml-base.so", "int ggml_base;")

    def library(self, name: str, code: str, *flags: str, folder: Path | None = None) -> Path:
        target = (folder or self.folder) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source = target.with_suffix(".c")
        source.write_text(code)
        subprocess.run([self._compiler, "-shared", "-fPIC", "-o", target, source, *flags], check=True)
        return target

    def variant(self, name: str, score: int | None, folder: Path | None = None) -> Path:
        code = "void *ggml_backend_init(void) { return 0; }\n"
        if score is not None:
            code += f"int ggml_backend_score(void) {{ return {score}; }}\n"
        return self.library(f"libggml-{name}.so", code, folder=folder)


@pytest.fixture
def natives(tmp_path: Path) -> Natives:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler on Linux")
    folder = tmp_path / "lib"
    folder.mkdir()
    return Natives(folder, compiler)


@pytest.fixture
def native_plugin(site: Site, natives: Natives) -> Callable[..., None]:
    """Install a plugin whose provider's libraries are in ``natives.folder``."""

    def install(backend: str = "cpu", folder: Path | None = None, drives: bool = False) -> None:
        code = (
            (DRIVER if drives else NATIVE)
            .replace("{folder}", str(folder or natives.folder))
            .replace("{backend}", backend)
        )
        site.install(f"hotshoe-ggml-{backend}", code)

    return install
