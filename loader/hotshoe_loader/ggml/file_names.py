"""ggml's file names: ``libggml-<backend>[-<variant>].so``, and ``libggml-base``, which all of them need."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "BACKENDS_WITHOUT_PLUGIN",
    "BackendFile",
    "LibraryCandidate",
    "backend_files",
    "find_libraries",
    "is_backend",
    "list_libraries",
    "variant_of",
]

BACKENDS_WITHOUT_PLUGIN = frozenset(
    ("blas", "cann", "hexagon", "hip", "musa", "opencl", "openvino", "sycl", "virtgpu", "webgpu", "zdnn", "zendnn")
)
"""ggml's backends for which this project has no plugin. A library of one is driven by the CPU's plugin."""


class LibraryCandidate(NamedTuple):
    """A file with the name of a ggml backend."""

    path: Path
    backend: str
    variant: str
    """Empty for ``libggml-<backend>.so`` itself."""

    @property
    def name(self) -> str:
        return f"ggml-{self.backend}-{self.variant}" if self.variant else f"ggml-{self.backend}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which the user may allow it."""
        return self.backend, self.name, self.path.name, str(self.path)


class BackendFile(NamedTuple):
    """A file with the name of a ggml backend, whose backend and variant are not told apart yet."""

    path: Path
    stem: str
    """Backend and variant together: "cpu-zen4" for ``libggml-cpu-zen4.so``."""


def _suffixes() -> tuple[str, ...]:
    if sys.platform == "win32":
        return (".dll",)
    # CMake uses ".so" for modules on macOS too.
    return (".so", ".dylib") if sys.platform == "darwin" else (".so",)


def is_backend(file: str) -> bool:
    """Whether a file has the name of a ggml backend or of libggml-base, with any suffix."""
    return file.partition(".")[0].removeprefix("lib").startswith("ggml-")


def backend_files(directory: Path) -> list[BackendFile]:
    """The files of a folder with the name of a ggml backend, sorted by name; [] if the folder cannot be read."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries)
    except (OSError, ValueError):  # ValueError: a NUL in its name
        return []
    found = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        stem = stem.removeprefix("lib")
        if suffix == ".dylib" and "." in stem:  # libggml-metal.0.dylib, to which libggml-metal.dylib links
            continue
        if suffix in _suffixes() and stem.startswith("ggml-") and not f"{stem}-".startswith("ggml-base-"):
            found.append(BackendFile(directory / name, stem.removeprefix("ggml-")))
    return found


def find_libraries(backend: str, directories: Sequence[Path]) -> list[LibraryCandidate]:
    """The variants of one backend, in the order of ``directories`` and then by name.

    A file that is found twice counts once. Relative directories are not searched: they depend on the current one.
    """
    found: dict[str, LibraryCandidate] = {}
    for directory in directories:
        for path, stem in backend_files(directory) if directory.is_absolute() else ():
            # Compare the whole name, or the name with a dash: "cpu" must not match "cpux".
            if stem == backend or stem.startswith(f"{backend}-"):
                variant = stem.removeprefix(backend).removeprefix("-")
                found.setdefault(os.path.realpath(path), LibraryCandidate(path, backend, variant))
    return list(found.values())


def list_libraries(directory: Path) -> list[LibraryCandidate]:
    """Every ggml backend in a folder. The part of the name before the first dash counts as the backend's name."""
    found = []
    for path, stem in backend_files(directory):
        backend, _, variant = stem.partition("-")
        found.append(LibraryCandidate(path, backend, variant))
    return found


def variant_of(library: Path) -> str:
    """The variant in a library's file name: "zen4" for ``…/libggml-cpu-zen4.so``; "" if it has none."""
    return library.stem.removeprefix("lib").removeprefix("ggml-").partition("-")[2]
