"""ggml libraries without a plugin: an unknown one, and ggml's library for a BLAS. Each is one file to compile."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

__all__ = ["acme", "blas_libraries", "compile_acme", "says_which_ggml"]

CMAKE = Path(__file__).parents[2] / "plugins" / "ggml-cpu" / "cmake"


def says_which_ggml(folder: Path, abi: str | None = None) -> None:
    """The manifest of a folder of libraries: they are of the installed ggml, or of the one with this fingerprint."""
    from hotshoe_ggml.native import build_info

    info = build_info()
    ggml = {"version": info.ggml_version, "abi": abi or info.abi_fingerprint}
    (folder / "hotshoe-plugin.json").write_text(json.dumps({"format": 1, "ggml": ggml}))


def _compiled(command: list[str], library: Path, name: str) -> Path:
    compiler = shutil.which(name)
    if compiler is None or sys.platform != "linux":
        pytest.skip(f"needs {name} on Linux")
    from hotshoe_ggml.native import LIBRARY_DIR

    library.parent.mkdir(parents=True, exist_ok=True)
    base = LIBRARY_DIR / "libggml-base.so.0"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, *command, base], check=True)
    return library


def compile_acme(folder: Path, name: str = "acme", *, linked: Sequence[str] = (), **macros: int) -> Path:
    """``libggml-<name>.so`` in ``folder``, of acme_ggml.c. linked: more for the linker."""
    from hotshoe_ggml.native import PACKAGE_DIR

    source = str(Path(__file__).with_name("acme_ggml.c"))
    defined = [f"-D{key}={value}" for key, value in macros.items()]
    return _compiled([*defined, f"-I{PACKAGE_DIR / 'include'}", source, *linked], folder / f"libggml-{name}.so", "gcc")


@pytest.fixture
def acme(tmp_path: Path) -> Callable[..., Path]:
    """``acme(name="acme", DEVICES=2, …)``: a folder with that library in it, of the right fingerprint."""

    def make(name: str = "acme", **macros: int) -> Path:
        folder = tmp_path / "libraries"
        compile_acme(folder, name, **macros)
        says_which_ggml(folder)
        return folder

    return make


@functools.cache
def blas_libraries() -> Path:
    """A folder with ggml's library for OpenBLAS, built from the pinned source. Skips where either cannot be had."""
    from hotshoe_ggml.abi import fingerprint
    from hotshoe_ggml.native import build_info

    if not Path("/usr/include/x86_64-linux-gnu/cblas.h").exists() and not Path("/usr/include/cblas.h").exists():
        pytest.skip("needs OpenBLAS with its headers: apt install libopenblas-dev")
    spec = importlib.util.spec_from_file_location("fetch_ggml", CMAKE / "fetch_ggml.py")
    assert spec is not None
    assert spec.loader is not None
    fetch = importlib.util.module_from_spec(spec)  # a script of the plugins' builds
    spec.loader.exec_module(fetch)
    try:
        archive = fetch.cached_archive()
    except fetch.FetchError as error:
        pytest.skip(f"needs ggml's source: {error}")
    folder = Path(tempfile.mkdtemp(prefix="hotshoe-blas-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source = folder / "source"
    with tarfile.open(archive) as tar:
        for member in tar:
            path = member.name.partition("/ggml/")[2]
            data = tar.extractfile(member)
            if data and (path.startswith(("src/ggml-blas/", "include/")) or path.endswith("-impl.h")):
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                (source / path).write_bytes(data.read())
    defined = ["GGML_BACKEND_DL", "GGML_BACKEND_BUILD", "GGML_BACKEND_SHARED", "GGML_SHARED", "GGML_BLAS_USE_OPENBLAS"]
    command = ["-std=c++17", *(f"-D{each}" for each in defined), f"-I{source / 'include'}", f"-I{source / 'src'}"]
    command += [str(source / "src" / "ggml-blas" / "ggml-blas.cpp"), "-lopenblas"]
    libraries = folder / "libraries"
    _compiled(command, libraries / "libggml-blas.so", "g++")
    # of the headers that it was compiled with, as a plugin's build says it
    says_which_ggml(libraries, fingerprint([source / "include", source / "src"], build_info().ggml_version))
    return libraries
