"""Stage 1, find: what is there, by metadata and file names only. Imports no plugin and opens no library."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hotshoe_loader.options import normalise

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

__all__ = [
    "GROUP",
    "LibraryCandidate",
    "PluginCandidate",
    "backend_name",
    "distribution_version",
    "find_libraries",
    "find_plugins",
    "list_libraries",
]

GROUP = "hotshoe.backends"
"""The entry point group; hotshoe_core.plugin says it too, but importing that costs pluggy's 20 ms."""

logger = logging.getLogger("hotshoe.loader")


@dataclass(frozen=True, slots=True)
class PluginCandidate:
    """An entry point of the group. ``shadowed_by``: the copy of the same distribution that Python sees first.

    ``entry_point`` is None, and ``problem`` says why, where the metadata cannot be read.
    """

    name: str
    value: str
    distribution: str
    version: str
    entry_point: EntryPoint | None
    location: str = ""
    shadowed_by: str | None = None
    problem: str | None = None

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}".strip()


@dataclass(frozen=True, slots=True)
class LibraryCandidate:
    """A file named as ggml names its backends. ``variant`` is "" for ``libggml-<name>.so`` itself."""

    path: Path
    backend: str
    variant: str

    @property
    def name(self) -> str:
        return f"ggml-{self.backend}-{self.variant}" if self.variant else f"ggml-{self.backend}"


def find_plugins() -> list[PluginCandidate]:
    """Every entry point of the group, in an order that depends on names alone.

    Not ``importlib.metadata.entry_points()``: one unreadable distribution would end it, and it parses every
    other group of every distribution. Not the importlib_metadata backport either: importing it takes the
    standard library's own finder out of ``sys.meta_path``, which is not ours to do, and brings nothing here.
    """
    found: list[PluginCandidate] = []
    first: dict[str, tuple[str, str]] = {}  # distribution -> location and version of the copy Python sees
    for distribution in _distributions():
        try:
            text = distribution.read_text("entry_points.txt")
        except (OSError, UnicodeError) as error:
            logger.debug("skipped the unreadable entry points of %r: %s", distribution, error)
            continue
        if not text or GROUP not in text:
            continue
        name, version, location = _identity(distribution)
        here = (location, version)
        seen = first.setdefault(normalise(name), here)
        shadow: str | None = None
        if seen != here:
            shadow = f"{name} {seen[1]} in {seen[0]}"
        elif any((c.distribution, c.version, c.location) == (name, version, location) for c in found):
            continue  # the same folder named twice in sys.path
        found += _entries(distribution, name, version, location, shadow)
    return sorted(
        found, key=lambda c: (c.name, normalise(c.distribution), c.shadowed_by is not None, c.value, c.origin)
    )


def _distributions() -> list[Distribution]:
    from importlib import metadata  # 35 ms: only when somebody looks for plugins

    # "" and "." are the current directory, in which a plugin may have been downloaded but was never installed.
    path = [entry for entry in sys.path if os.path.isabs(entry)]
    try:
        return list(metadata.distributions(path=path))
    except Exception as error:  # a foreign finder on sys.meta_path can raise anything
        logger.warning("could not list installed distributions: %s: %s", type(error).__name__, error)
        return []


def _identity(distribution: Distribution) -> tuple[str, str, str]:
    location = str(distribution.locate_file(""))
    try:
        metadata = distribution.metadata
        name, version = str(metadata["Name"] or ""), str(metadata["Version"] or "")
    except Exception as error:  # METADATA missing or not text: the entry point may still work
        logger.debug("no metadata for %r: %s", distribution, error)
        name = version = ""
    return name or "unknown distribution", version, os.path.realpath(location)


def _entries(
    distribution: Distribution, name: str, version: str, location: str, shadow: str | None
) -> list[PluginCandidate]:
    try:
        entries = list(distribution.entry_points.select(group=GROUP))
    except Exception as error:  # not in the format: configparser and the parser of 3.10 raise various things
        problem = f"its entry_points.txt cannot be read: {type(error).__name__}: {error}"
        return [PluginCandidate(name, "", name, version, None, location, shadow, problem)]
    unique = {(entry.name, entry.value): entry for entry in entries}
    return [
        PluginCandidate(entry.name, entry.value, name, version, entry, location, shadow) for entry in unique.values()
    ]


def distribution_version(name: str) -> str | None:
    """The version of an installed distribution, entry point or not; None if there is none."""
    from importlib import metadata

    try:
        return metadata.version(name) or ""
    except metadata.PackageNotFoundError:
        return None
    except Exception as error:  # there, but its metadata is damaged
        logger.debug("no version for %s: %s", name, error)
        return ""


class _Named(NamedTuple):
    path: Path
    stem: str  # "cpu-zen4" of "libggml-cpu-zen4.so"


def _suffixes() -> tuple[str, ...]:
    if sys.platform == "win32":
        return (".dll",)
    # CMake calls modules ".so" on macOS too.
    return (".so", ".dylib") if sys.platform == "darwin" else (".so",)


def _ggml_files(directory: Path) -> list[_Named]:
    """Files of ``directory`` named like a ggml backend, by name. A folder that cannot be read holds none."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries)
    except OSError:
        return []
    found = []
    for name in names:
        stem, suffix = os.path.splitext(name)
        stem = stem.removeprefix("lib")
        if suffix in _suffixes() and stem.startswith("ggml-") and not f"{stem}-".startswith("ggml-base-"):
            found.append(_Named(directory / name, stem.removeprefix("ggml-")))
    return found


def find_libraries(backend: str, directories: Sequence[Path]) -> list[LibraryCandidate]:
    """The variants of one backend, in the order of ``directories`` and then by name; a file reached twice counts once.

    Relative directories are not searched: they would mean the current one.
    """
    found: dict[str, LibraryCandidate] = {}
    for directory in directories:
        for path, stem in _ggml_files(directory) if directory.is_absolute() else ():
            # "cpu" is not a prefix of "cpux": the whole name, or the name and a dash.
            if stem == backend or stem.startswith(f"{backend}-"):
                variant = stem.removeprefix(backend).removeprefix("-")
                found.setdefault(os.path.realpath(path), LibraryCandidate(path, backend, variant))
    return list(found.values())


def list_libraries(directory: Path) -> list[LibraryCandidate]:
    """Every ggml backend of a folder, whatever its name. The part before the first dash is taken for the backend's."""
    found = []
    for path, stem in _ggml_files(directory):
        backend, _, variant = stem.partition("-")
        found.append(LibraryCandidate(path, backend, variant))
    return found


def backend_name(path: Path) -> str:
    """What words about a library call it: "cpu-zen4" for ``…/libggml-cpu-zen4.so``."""
    return path.stem.removeprefix("lib").removeprefix("ggml-")
