"""How ggml names its files: ``libggml-<backend>[-<variant>].so``, and ``libggml-base`` that they all need."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "LibraryCandidate",
    "Named",
    "backend_files",
    "find_libraries",
    "is_backend",
    "list_libraries",
    "variant_of",
]


class LibraryCandidate(NamedTuple):
    """A file named as ggml names its backends. ``variant`` is "" for ``libggml-<name>.so`` itself."""

    path: Path
    backend: str
    variant: str

    @property
    def name(self) -> str:
        return f"ggml-{self.backend}-{self.variant}" if self.variant else f"ggml-{self.backend}"


class Named(NamedTuple):
    """A file named like a ggml backend."""

    path: Path
    stem: str  # "cpu-zen4" of "libggml-cpu-zen4.so"


def _suffixes() -> tuple[str, ...]:
    if sys.platform == "win32":
        return (".dll",)
    # CMake calls modules ".so" on macOS too.
    return (".so", ".dylib") if sys.platform == "darwin" else (".so",)


def is_backend(file: str) -> bool:
    """Whether a file's name, whatever its suffix, is that of a ggml backend or of their base."""
    return file.partition(".")[0].removeprefix("lib").startswith("ggml-")


def backend_files(directory: Path) -> list[Named]:
    """Files of ``directory`` named like a ggml backend, by name. A folder that cannot be read holds none."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries)
    except (OSError, ValueError):  # the latter for a NUL in its name
        return []
    found = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        stem = stem.removeprefix("lib")
        if suffix == ".dylib" and "." in stem:  # libggml-metal.0.dylib: what libggml-metal.dylib is a link to
            continue
        if suffix in _suffixes() and stem.startswith("ggml-") and not f"{stem}-".startswith("ggml-base-"):
            found.append(Named(directory / name, stem.removeprefix("ggml-")))
    return found


def find_libraries(backend: str, directories: Sequence[Path]) -> list[LibraryCandidate]:
    """The variants of one backend, in the order of ``directories`` and then by name; a file reached twice counts once.

    Relative directories are not searched: they would mean the current one.
    """
    found: dict[str, LibraryCandidate] = {}
    for directory in directories:
        for path, stem in backend_files(directory) if directory.is_absolute() else ():
            # "cpu" is not a prefix of "cpux": the whole name, or the name and a dash.
            if stem == backend or stem.startswith(f"{backend}-"):
                variant = stem.removeprefix(backend).removeprefix("-")
                found.setdefault(os.path.realpath(path), LibraryCandidate(path, backend, variant))
    return list(found.values())


def list_libraries(directory: Path) -> list[LibraryCandidate]:
    """Every ggml backend of a folder, whatever its name. The part before the first dash is taken for the backend's."""
    found = []
    for path, stem in backend_files(directory):
        backend, _, variant = stem.partition("-")
        found.append(LibraryCandidate(path, backend, variant))
    return found


def variant_of(library: Path) -> str:
    """What words about a device call its library's variant: "zen4" for ``…/libggml-cpu-zen4.so``, "" for none."""
    return library.stem.removeprefix("lib").removeprefix("ggml-").partition("-")[2]
