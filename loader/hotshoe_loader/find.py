"""Stage 1, find: what is there, by metadata and file names only. Imports no plugin and opens no library."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hotshoe_core.errors.text import printable
from hotshoe_loader.files import read_bytes
from hotshoe_loader.options import normalise

__all__ = ["GROUP", "Found", "PluginCandidate", "find_entry_points", "find_plugins"]

GROUP = "hotshoe.backends"
"""The entry point group; hotshoe_core.contract.plugin says it too, but importing that costs pluggy's 20 ms."""

logger = logging.getLogger("hotshoe.loader")

_LARGEST = 1 << 20  # bytes of a metadata file
_LONGEST = 500  # characters of an entry point's value
_MOST_ENTRIES = 32
"""Entry points that one distribution may have in the group: each costs a process that tries it."""

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


def find_plugins() -> Found:
    """Every entry point of the group of backends, in an order that depends on names alone."""
    found, installed = _scan((GROUP,))
    return Found(found[GROUP], installed)


def find_entry_points(groups: Sequence[str]) -> dict[str, list[PluginCandidate]]:
    """The entry points of each of these groups, in an order that depends on names alone; nothing is imported."""
    return _scan(groups)[0]


def _scan(groups: Sequence[str]) -> tuple[dict[str, list[PluginCandidate]], dict[str, str]]:
    """The entry points by group, and the version of every distribution by its normalised name.

    Not through importlib.metadata: importing it takes longer (35 ms) than reading the few files that matter, one
    unreadable distribution ends its ``entry_points()``, and it parses every other group of every distribution.
    It is asked about what is no plain folder: zip files, and finders that some packagers put on ``sys.meta_path``.
    """
    found: dict[str, list[PluginCandidate]] = {group: [] for group in groups}
    installed: dict[str, str] = {}
    first: dict[str, tuple[str, str]] = {}  # distribution -> location and version of the copy Python sees
    listed: set[tuple[str, str, str]] = set()
    real: dict[str, str] = {}  # of a folder on the path, which thousands may share
    for each in _distributions():
        installed.setdefault(normalise(each.name), each.version)
        if not each.problem and not any(group in each.entry_points for group in groups):
            continue
        name, version = each.identity()
        if each.location not in real:
            real[each.location] = os.path.realpath(each.location)
        here = (real[each.location], version)
        seen = first.setdefault(normalise(name), here)
        shadow: str | None = None
        if seen != here:
            shadow = f"{name} {seen[1]} in {seen[0]}"
        elif (name, *here) in listed:
            continue  # the same folder named twice in sys.path
        listed.add((name, *here))
        for group in groups:
            found[group] += _candidates(each, group, name, version, here[0], shadow)
    for entries in found.values():
        entries.sort(key=lambda c: (c.name, normalise(c.distribution), c.shadowed_by is not None, c.value, c.origin))
    return found, installed


class _Distribution(NamedTuple):
    name: str  # as its folder is called: "-" may be "_" there
    version: str
    location: str
    info: str
    entry_points: str
    metadata: str | None = None  # METADATA, where it is no file in ``info``
    problem: str = ""  # why its entry points cannot be read

    def identity(self) -> tuple[str, str]:
        """Name and version as its metadata spells them."""
        text = self.metadata
        for name in ("METADATA", "PKG-INFO") if text is None else ():
            text, _ = _read(os.path.join(self.info, name))
            if text:
                break
        fields = dict(re.findall(r"^(Name|Version):[ \t]*(\S+)", (text or "").partition("\n\n")[0], re.MULTILINE))
        name, version = fields.get("Name", self.name or "unknown distribution"), fields.get("Version", self.version)
        return printable(name, 200), printable(version, 100)


def _search_path() -> list[str]:
    # "" and "." are the current directory, in which a plugin may have been downloaded but was never installed.
    return list(dict.fromkeys(entry for entry in sys.path if os.path.isabs(entry)))


def _distributions() -> Iterator[_Distribution]:
    archives = []
    for entry in _search_path():
        try:
            names = sorted(os.listdir(entry))
        except NotADirectoryError:
            if os.path.isfile(entry):  # and no FIFO, which the search in it would wait for
                archives.append(entry)
            continue
        except OSError:
            continue
        for name in names:
            stem, _, suffix = name.rpartition(".")  # os.path's functions would take half of the time here
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
        words = printable(f"{type(error).__name__}: {error}", 500)
        logger.warning("could not list installed distributions: %s", words)


def _read(path: str) -> tuple[str, str]:
    """Text of a metadata file, and why it cannot be read, one of them empty; both are where there is no such file.

    A file that names our group and is not UTF-8 is a plugin's; of one that is not can nothing be said.
    """
    try:
        data = read_bytes(path, _LARGEST)
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
    found: _Distribution, group: str, name: str, version: str, location: str, shadow: str | None
) -> list[PluginCandidate]:
    """The entry points of one distribution; one candidate that says so where they cannot be read."""

    def candidate(entry: str, value: str, problem: str | None = None) -> PluginCandidate:
        return PluginCandidate(printable(entry, 200), value, name, version, location, found.info, shadow, problem)

    if found.problem:
        return [candidate(name, "", f"its entry_points.txt cannot be read: {found.problem}")]
    # By hand: importing configparser takes longer than everything else here.
    entries: dict[str, str] = {}
    section = ""
    for line in map(str.strip, found.entry_points.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
        elif line.startswith("[") and GROUP in line:
            return [candidate(name, "", f"its entry_points.txt cannot be read: {line!r} is no '[group]'")]
        elif section == group and line and line[0] not in "#;":
            key, equals, value = (part.strip() for part in line.partition("="))
            if not (key and equals and value):
                return [
                    candidate(name, "", f"its entry_points.txt cannot be read: {line!r} is not 'name = module:object'")
                ]
            if len(value) > _LONGEST:
                what = f"the value of {printable(key, 80)!r} has {len(value)} characters; expected at most {_LONGEST}"
                return [candidate(name, "", f"its entry_points.txt cannot be read: {what}")]
            entries[key] = value
    # each backend is probed in a process of its own; models, converters and tokenizers cost nothing until asked for
    if group == GROUP and len(entries) > _MOST_ENTRIES:
        return [
            candidate(name, "", f"it has {len(entries)} entry points in {GROUP!r}; expected at most {_MOST_ENTRIES}")
        ]
    return [candidate(key, value) for key, value in entries.items()]
