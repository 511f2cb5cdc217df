"""The ``libggml-base`` that a set of ggml's libraries needs, and which ggml it was built from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from hotshoe_core.contract.mapped_libraries import is_same_file
from hotshoe_core.errors.text import shown
from hotshoe_loader.files import read_bytes
from hotshoe_loader.manifest import FILE, Manifest, damaged, read_manifest

__all__ = ["Abi", "Built", "abi_of_core", "abi_of_library", "built_from", "core_in", "version_in"]

_BASE = re.compile(r"(lib)?ggml-base(\.\d+)*\.(so(\.\d+)*|dylib|dll)")
_LARGEST = 64 << 20  # bytes; a libggml-base has one or two million


class Abi(NamedTuple):
    """A build of ggml: its version, and the fingerprint of its headers where it is known."""

    version: str
    fingerprint: str | None = None

    def matches(self, other: Abi) -> bool:
        if self.fingerprint and other.fingerprint:
            return self.fingerprint == other.fingerprint
        return self.version == other.version

    def __str__(self) -> str:
        return f"{self.version} ({self.fingerprint[:8]})" if self.fingerprint else self.version


class Built(NamedTuple):
    """What a manifest says under "ggml". adopts: first and last version its bindings work with, for load_all(ggml=)."""

    abi: Abi
    adopts: tuple[str, str] | None = None


def built_from(manifest: Manifest | None) -> Built | None:
    """Of ``"ggml": {"version": "0.20.2", "abi": "0972…", "adopts": ["0.20.2", "0.25.1"]}``; None if it does not say.

    Raises Rejected if it is damaged.
    """
    fields = manifest.fields.get("ggml") if manifest else None
    if manifest is None or fields is None:
        return None
    try:
        if not isinstance(fields, dict):
            raise ValueError(f'"ggml" is {shown(fields)}; expected an object with "version"')
        adopts = None
        if "adopts" in fields:
            earliest, latest = map(_version, fields["adopts"])
            adopts = (earliest, latest)
        return Built(Abi(_version(fields["version"]), _version(fields["abi"]) if fields.get("abi") else None), adopts)
    except (ValueError, TypeError, KeyError) as error:
        raise damaged(manifest.path, error) from error


def _version(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 100 or not value.isprintable():
        raise ValueError(f"got the version {shown(value)}; expected text such as '0.20.2'")
    return value


def _declared(library: Path) -> Abi | None:
    for folder in (library.parent, library.parent.parent):
        if os.path.isfile(folder / FILE):
            built = built_from(read_manifest(folder / FILE))
            return built.abi if built else None
    return None


def abi_of_core(core: Path) -> Abi | None:
    """Which ggml a ``libggml-base`` is: as its manifest says, else by the version in the file itself."""
    declared = _declared(core)
    if declared is None:
        version = version_in(core)
        return Abi(version) if version else None
    return declared


def abi_of_library(library: Path, core: Path) -> Abi | None:
    """Which ggml a backend library was built from: as a manifest says, else by the ``libggml-base`` beside it.

    A backend library does not say it itself: only its base carries a version.
    """
    declared = _declared(library)
    if declared is not None:
        return declared
    near = library.parent
    # Debian: ggml/backends0/libggml-vulkan.so, and libggml-base.so.0 two folders up. Homebrew: libexec, and lib.
    folders = [near, near.parent, near.parent.parent, *([near.parent / "lib"] if near.name == "libexec" else [])]
    for base in filter(None, map(core_in, folders)):
        if is_same_file(base, core):
            return abi_of_core(core)
        version = version_in(base)
        if version:
            return Abi(version)
    return None


def core_in(folder: Path) -> Path | None:
    """The ``libggml-base`` of a folder, if there is one; of several names for it the shortest."""
    names = [name for name in _names(folder) if _BASE.fullmatch(name)]
    return min((folder / name for name in names), key=lambda path: (len(path.name), path.name), default=None)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (OSError, ValueError):
        return []


def version_in(base: Path) -> str | None:
    """The version a ``libggml-base`` carries as text: the one string in it that is a version and nothing else."""
    try:
        data = read_bytes(base, _LARGEST)
    except OSError:
        return None
    found = {match.decode() for match in re.findall(rb"\0(\d+\.\d{1,3}\.\d{1,4})(?=\0)", data)}
    return found.pop() if len(found) == 1 else None
