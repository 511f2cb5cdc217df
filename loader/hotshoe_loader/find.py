"""Stage 1, find: what is there, by metadata and file names only. Imports no plugin and opens no library."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hotshoe_loader.options import normalise

__all__ = [
    "GROUP",
    "Found",
    "LibraryCandidate",
    "Named",
    "PluginCandidate",
    "backend_name",
    "find_libraries",
    "find_plugins",
    "ggml_files",
    "list_libraries",
]

GROUP = "hotshoe.backends"
"""The entry point group; hotshoe_core.plugin says it too, but importing that costs pluggy's 20 ms."""

logger = logging.getLogger("hotshoe.loader")

_VALUE = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attribute>[\w.]+)\s*)?(\[.*\]\s*)?")


@dataclass(frozen=True, slots=True)
class PluginCandidate:
    """An entry point of the group. Made of strings only, so that a child process can be told of it.

    location: the folder on sys.path. info: the distribution's own folder there (…dist-info), "" where there is
    none. shadowed_by: the copy of the same distribution that Python sees first. problem: why its metadata
    cannot be read.
    """

    name: str
    value: str
    distribution: str
    version: str = ""
    location: str = ""
    info: str = ""
    shadowed_by: str | None = None
    problem: str | None = None

    @property
    def origin(self) -> str:
        return f"{self.distribution} {self.version}".strip()

    @property
    def module(self) -> str:
        """The module of the entry point; "" if its value is not "module" or "module:object"."""
        match = _VALUE.fullmatch(self.value.strip())
        return match["module"] if match else ""

    @property
    def attribute(self) -> str:
        match = _VALUE.fullmatch(self.value.strip())
        return (match["attribute"] or "") if match else ""


class Found(NamedTuple):
    """plugins: every entry point of the group. installed: version of every distribution, by normalised name."""

    plugins: list[PluginCandidate]
    installed: dict[str, str]


@dataclass(frozen=True, slots=True)
class LibraryCandidate:
    """A file named as ggml names its backends. ``variant`` is "" for ``libggml-<name>.so`` itself."""

    path: Path
    backend: str
    variant: str

    @property
    def name(self) -> str:
        return f"ggml-{self.backend}-{self.variant}" if self.variant else f"ggml-{self.backend}"


def find_plugins(group: str = GROUP) -> Found:
    """Every entry point of a group, in an order that depends on names alone.

    Not through importlib.metadata: importing it takes longer (35 ms) than reading the few files that matter, one
    unreadable distribution ends its ``entry_points()``, and it parses every other group of every distribution.
    It is asked about what is no plain folder: zip files, and finders that some packagers put on ``sys.meta_path``.
    """
    found: list[PluginCandidate] = []
    installed: dict[str, str] = {}
    first: dict[str, tuple[str, str]] = {}  # distribution -> location and version of the copy Python sees
    for each in _distributions():
        installed.setdefault(normalise(each.name), each.version)
        if group not in each.entry_points:
            continue
        name, version = each.identity()
        here = (os.path.realpath(each.location), version)
        seen = first.setdefault(normalise(name), here)
        shadow: str | None = None
        if seen != here:
            shadow = f"{name} {seen[1]} in {seen[0]}"
        elif any((c.distribution, c.version, c.location) == (name, version, here[0]) for c in found):
            continue  # the same folder named twice in sys.path
        found += _entries(each.entry_points, group, name, version, here[0], each.info, shadow)
    found.sort(key=lambda c: (c.name, normalise(c.distribution), c.shadowed_by is not None, c.value, c.origin))
    return Found(found, installed)


class _Distribution(NamedTuple):
    name: str  # as its folder is called: "-" may be "_" there
    version: str
    location: str
    info: str
    entry_points: str
    metadata: str | None = None  # METADATA, where it is no file in ``info``

    def identity(self) -> tuple[str, str]:
        """Name and version as its metadata spells them."""
        text = self.metadata
        for name in ("METADATA", "PKG-INFO") if text is None else ():
            text = _read(os.path.join(self.info, name))
            if text:
                break
        fields = dict(re.findall(r"^(Name|Version):[ \t]*(\S+)", (text or "").partition("\n\n")[0], re.MULTILINE))
        return fields.get("Name", self.name or "unknown distribution"), fields.get("Version", self.version)


def _search_path() -> list[str]:
    # "" and "." are the current directory, in which a plugin may have been downloaded but was never installed.
    return list(dict.fromkeys(entry for entry in sys.path if os.path.isabs(entry)))


def _distributions() -> Iterator[_Distribution]:
    archives = []
    for entry in _search_path():
        try:
            names = sorted(os.listdir(entry))
        except NotADirectoryError:
            archives.append(entry)
            continue
        except OSError:
            continue
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix not in (".dist-info", ".egg-info") and name != "EGG-INFO":
                continue
            info = os.path.join(entry, name)
            label, _, version = (os.path.basename(entry) if name == "EGG-INFO" else stem).partition("-")
            yield _Distribution(label, version, entry, info, _read(os.path.join(info, "entry_points.txt")) or "")
    finders = [
        finder
        for finder in sys.meta_path
        if hasattr(finder, "find_distributions")
        and getattr(finder, "__module__", "").partition(".")[0]
        not in ("_frozen_importlib_external", "importlib", "importlib_metadata")
    ]
    if archives or finders:
        yield from _unusual(archives, finders)


def _unusual(archives: list[str], finders: Sequence[object]) -> Iterator[_Distribution]:
    """Distributions that are no folders on ``sys.path``."""
    from importlib import metadata

    try:
        context = metadata.DistributionFinder.Context()
        found = [*metadata.distributions(path=archives)]
        found += [each for finder in finders for each in finder.find_distributions(context)]  # type: ignore[attr-defined]
        for each in found:
            name, version = str(each.metadata["Name"] or ""), str(each.metadata["Version"] or "")
            text = each.read_text("entry_points.txt") or ""
            yield _Distribution(name, version, str(each.locate_file("")), "", text, f"Name: {name}\nVersion: {version}")
    except Exception as error:  # a foreign finder can raise anything
        logger.warning("could not list installed distributions: %s: %s", type(error).__name__, error)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeError) as error:
        logger.debug("skipped the unreadable %s: %s", path, error)
        return None


def _entries(
    text: str, group: str, name: str, version: str, location: str, info: str, shadow: str | None
) -> list[PluginCandidate]:
    # By hand: importing configparser takes longer than everything else here.
    entries: dict[str, str] = {}
    section = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif section == group and line and line[0] not in "#;":
            key, equals, value = (part.strip() for part in line.partition("="))
            if not (key and equals and value):
                problem = f"its entry_points.txt cannot be read: {line!r} is not 'name = module:object'"
                return [PluginCandidate(name, "", name, version, location, info, shadow, problem)]
            entries[key] = value
    return [PluginCandidate(key, value, name, version, location, info, shadow) for key, value in entries.items()]


class Named(NamedTuple):
    """A file named like a ggml backend."""

    path: Path
    stem: str  # "cpu-zen4" of "libggml-cpu-zen4.so"


def _suffixes() -> tuple[str, ...]:
    if sys.platform == "win32":
        return (".dll",)
    # CMake calls modules ".so" on macOS too.
    return (".so", ".dylib") if sys.platform == "darwin" else (".so",)


def ggml_files(directory: Path) -> list[Named]:
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
            found.append(Named(directory / name, stem.removeprefix("ggml-")))
    return found


def find_libraries(backend: str, directories: Sequence[Path]) -> list[LibraryCandidate]:
    """The variants of one backend, in the order of ``directories`` and then by name; a file reached twice counts once.

    Relative directories are not searched: they would mean the current one.
    """
    found: dict[str, LibraryCandidate] = {}
    for directory in directories:
        for path, stem in ggml_files(directory) if directory.is_absolute() else ():
            # "cpu" is not a prefix of "cpux": the whole name, or the name and a dash.
            if stem == backend or stem.startswith(f"{backend}-"):
                variant = stem.removeprefix(backend).removeprefix("-")
                found.setdefault(os.path.realpath(path), LibraryCandidate(path, backend, variant))
    return list(found.values())


def list_libraries(directory: Path) -> list[LibraryCandidate]:
    """Every ggml backend of a folder, whatever its name. The part before the first dash is taken for the backend's."""
    found = []
    for path, stem in ggml_files(directory):
        backend, _, variant = stem.partition("-")
        found.append(LibraryCandidate(path, backend, variant))
    return found


def backend_name(path: Path) -> str:
    """What words about a library call it: "cpu-zen4" for ``…/libggml-cpu-zen4.so``."""
    return path.stem.removeprefix("lib").removeprefix("ggml-")
