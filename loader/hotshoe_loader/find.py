"""Stage 1, find: the installed plugins, by metadata and file names only. Imports no plugin and opens no library."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hotshoe_core.errors.install import pip_install
from hotshoe_core.errors.text import printable
from hotshoe_loader.files import read_bytes
from hotshoe_loader.options import normalise

__all__ = ["GROUP", "Found", "EntryPoint", "find_entry_points", "find_plugins"]

GROUP = "hotshoe.backends"
"""The entry point group. hotshoe_core.contract.plugin defines it too, but importing that takes pluggy's 20 ms."""

logger = logging.getLogger("hotshoe.loader")

_MAX_METADATA = 1 << 20  # bytes of a metadata file
_MAX_VALUE = 500  # characters of an entry point's value
_MAX_ENTRIES = 32
"""Entry points that one distribution may have in the group, because each one is probed in a child process."""

_VALUE = re.compile(r"(?P<module>[\w.]+)\s*(:\s*(?P<attribute>[\w.]+)\s*)?(\[.*\]\s*)?")


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """An entry point of a distribution. It consists of strings only, because it is sent to a child process."""

    name: str
    value: str
    """What it names: "module" or "module:object"."""
    distribution: str
    version: str = ""
    location: str = ""
    """The distribution's folder on sys.path."""
    info: str = ""
    """The path of its ….dist-info; "" if there is no such folder."""
    shadowed_by: str | None = None
    """Another copy of the same distribution, which comes first in sys.path; None if this copy is the first."""
    problem: str | None = None
    """Why its metadata cannot be read."""

    @property
    def origin(self) -> str:
        """The distribution with its version."""
        return f"{self.distribution} {self.version}".strip()

    def pip_install(self, option: str) -> str:
        """The command that installs its distribution again, with "--upgrade" or "--force-reinstall"."""
        return pip_install(self.distribution, option, self.info)

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
    """What is installed."""

    plugins: list[EntryPoint]
    """Every entry point of the group."""
    installed: dict[str, str]
    """The version of every distribution, by its normalised name."""


def find_plugins() -> Found:
    """Every entry point of the group, in an order that depends on names only, and the installed distributions."""
    found, installed = _scan((GROUP,))
    return Found(found[GROUP], installed)


def find_entry_points(groups: Sequence[str]) -> dict[str, list[EntryPoint]]:
    """The entry points of each of these groups, in an order that depends on names only. Nothing is imported."""
    return _scan(groups)[0]


def _scan(groups: Sequence[str]) -> tuple[dict[str, list[EntryPoint]], dict[str, str]]:
    """The entry points by group, and the version of every distribution by its normalised name.

    It does not use importlib.metadata for folders: importing that takes 35 ms, longer than reading the few files that
    matter; one unreadable distribution ends its ``entry_points()``; and it parses every group of every distribution.
    importlib.metadata is used only for entries that are not folders: zip files, and custom finders on
    ``sys.meta_path``.
    """
    found: dict[str, list[EntryPoint]] = {group: [] for group in groups}
    installed: dict[str, str] = {}
    first_copies: dict[str, tuple[str, str]] = {}  # distribution -> location and version of the copy that Python uses
    listed_copies: set[tuple[str, str, str]] = set()
    real_paths: dict[str, str] = {}  # real paths of folders on sys.path, which thousands of distributions may share
    for distribution in _distributions():
        installed.setdefault(normalise(distribution.name), distribution.version)
        if not distribution.problem and not any(group in distribution.entry_points for group in groups):
            continue
        name, version = distribution.identity()
        if distribution.location not in real_paths:
            real_paths[distribution.location] = os.path.realpath(distribution.location)
        copy = (real_paths[distribution.location], version)
        first = first_copies.setdefault(normalise(name), copy)
        shadow: str | None = None
        if first != copy:
            shadow = f"{name} {first[1]} in {first[0]}"
        elif (name, *copy) in listed_copies:
            continue  # sys.path contains the same folder twice
        listed_copies.add((name, *copy))
        for group in groups:
            found[group] += _candidates(distribution, group, name, version, copy[0], shadow)
    for entries in found.values():
        entries.sort(key=lambda c: (c.name, normalise(c.distribution), c.shadowed_by is not None, c.value, c.origin))
    return found, installed


class _Distribution(NamedTuple):
    name: str  # from the folder's name, where "-" may be "_"
    version: str
    location: str
    info: str
    entry_points: str
    metadata: str | None = None  # the text of METADATA, if it is not a file in ``info``
    problem: str = ""  # why its entry points cannot be read

    def identity(self) -> tuple[str, str]:
        """Name and version as spelled in its metadata."""
        text = self.metadata
        for name in ("METADATA", "PKG-INFO") if text is None else ():
            text, _ = _read(os.path.join(self.info, name))
            if text:
                break
        fields = dict(re.findall(r"^(Name|Version):[ \t]*(\S+)", (text or "").partition("\n\n")[0], re.MULTILINE))
        name, version = fields.get("Name", self.name or "unknown distribution"), fields.get("Version", self.version)
        return printable(name, 200), printable(version, 100)


def _search_path() -> list[str]:
    # "" and "." mean the current directory, which may contain a downloaded plugin that was never installed.
    # Python ignores entries that are not text, such as a Path or None.
    return list(dict.fromkeys(entry for entry in sys.path if isinstance(entry, str) and os.path.isabs(entry)))


def _distributions() -> Iterator[_Distribution]:
    archives = []
    for entry in _search_path():
        try:
            names = sorted(os.listdir(entry))
        except NotADirectoryError:
            if os.path.isfile(entry):  # importlib.metadata would wait for a FIFO
                archives.append(entry)
            continue
        except OSError:
            continue
        for name in names:
            stem, _, suffix = name.rpartition(".")  # the functions of os.path would take half of this loop's time
            if name == "EGG-INFO":
                stem = os.path.basename(entry)
            elif not stem or suffix not in ("dist-info", "egg-info"):
                continue
            label, _, version = stem.partition("-")
            info = f"{entry}{os.sep}{name}"
            text, problem = _read(f"{info}{os.sep}entry_points.txt")
            yield _Distribution(label, version, entry, info, text, problem=problem)
    finders = [
        finder
        for finder in sys.meta_path
        if hasattr(finder, "find_distributions")
        and getattr(finder, "__module__", "").partition(".")[0]
        not in ("_frozen_importlib_external", "importlib", "importlib_metadata")
    ]
    if archives or finders:
        yield from _other_distributions(archives, finders)


def _other_distributions(archives: list[str], finders: Sequence[object]) -> Iterator[_Distribution]:
    """Distributions that are not folders on ``sys.path``: in zip files, or of custom finders."""
    from importlib import metadata

    try:
        context = metadata.DistributionFinder.Context()
        found = [*metadata.distributions(path=archives)]
        found += [item for finder in finders for item in finder.find_distributions(context)]  # type: ignore[attr-defined]
        for item in found:
            name, version = str(item.metadata["Name"] or ""), str(item.metadata["Version"] or "")
            text = item.read_text("entry_points.txt") or ""
            yield _Distribution(name, version, str(item.locate_file("")), "", text, f"Name: {name}\nVersion: {version}")
    except Exception as error:  # a foreign finder can raise anything
        reason = printable(f"{type(error).__name__}: {error}", 500)
        logger.warning("cannot list all installed distributions: %s", reason)


def _read(path: str) -> tuple[str, str]:
    """Return the text of a metadata file and "", or "" and why it cannot be read; "" and "" if it does not exist.

    A file that is not UTF-8 is a problem only if it names our group, because then it belongs to a plugin.
    """
    try:
        data = read_bytes(path, _MAX_METADATA)
        return data.decode("utf-8").removeprefix("\ufeff"), ""
    except (FileNotFoundError, NotADirectoryError):
        return "", ""
    except UnicodeDecodeError as error:
        if GROUP.encode() in data:
            return "", f"it is not UTF-8: {error}"
        return data.decode("utf-8", "replace"), ""
    except OSError as error:
        return "", error.strerror or str(error)


def _candidates(
    distribution: _Distribution, group: str, name: str, version: str, location: str, shadow: str | None
) -> list[EntryPoint]:
    """The entry points of one distribution; if they cannot be read, one candidate with that problem."""

    def candidate(entry: str, value: str, problem: str | None = None) -> EntryPoint:
        return EntryPoint(printable(entry, 200), value, name, version, location, distribution.info, shadow, problem)

    if distribution.problem:
        return [candidate(name, "", f"its entry_points.txt cannot be read: {distribution.problem}")]
    # Parsed without configparser, because importing it takes longer than the rest of this module.
    entries: dict[str, str] = {}
    section = ""
    for line in map(str.strip, distribution.entry_points.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif line.startswith("[") and GROUP in line:
            return [candidate(name, "", f"its entry_points.txt cannot be read: {line!r} is not '[group]'")]
        elif section == group and line and line[0] not in "#;":
            key, equals, value = (part.strip() for part in line.partition("="))
            if not (key and equals and value):
                return [
                    candidate(name, "", f"its entry_points.txt cannot be read: {line!r} is not 'name = module:object'")
                ]
            if len(value) > _MAX_VALUE:
                what = f"the value of {printable(key, 80)!r} has {len(value)} characters; expected at most {_MAX_VALUE}"
                return [candidate(name, "", f"its entry_points.txt cannot be read: {what}")]
            entries[key] = value
    # Only backends have a limit, because each is probed in a child process. Other groups cost nothing until used.
    if group == GROUP and len(entries) > _MAX_ENTRIES:
        return [
            candidate(name, "", f"it has {len(entries)} entry points in {GROUP!r}; expected at most {_MAX_ENTRIES}")
        ]
    return [candidate(key, value) for key, value in entries.items()]
