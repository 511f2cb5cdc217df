"""Which ggml a library was built from: its version, and the fingerprint of its headers if that is known."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from hotshoe_core.contract.mapped_libraries import is_same_file
from hotshoe_core.errors.text import shown
from hotshoe_loader.files import read_bytes
from hotshoe_loader.manifest import FILE, Manifest, invalid_manifest, read_manifest

__all__ = ["Abi", "DeclaredGgml", "abi_of_core", "abi_of_library", "core_in", "declared_ggml", "version_in"]

_BASE = re.compile(r"(lib)?ggml-base(\.\d+)*\.(so(\.\d+)*|dylib|dll)")
_MAX_LIBRARY = 64 << 20  # bytes; a libggml-base has 1 to 2 MB


class Abi(NamedTuple):
    """A build of ggml."""

    version: str
    fingerprint: str | None = None
    """A hash of its headers; None if it is unknown."""

    def matches(self, other: Abi) -> bool:
        """Whether both are the same build: by fingerprint if both have one, else by version."""
        if self.fingerprint and other.fingerprint:
            return self.fingerprint == other.fingerprint
        return self.version == other.version

    def __str__(self) -> str:
        return f"{self.version} ({self.fingerprint[:8]})" if self.fingerprint else self.version


class DeclaredGgml(NamedTuple):
    """The field "ggml" of a manifest."""

    abi: Abi
    adopts: tuple[str, str] | None = None
    """The first and last version of ggml that its bindings work with, for load_all(ggml=)."""


def declared_ggml(manifest: Manifest | None) -> DeclaredGgml | None:
    """Read ``"ggml": {"version": "0.20.2", "abi": "0972…", "adopts": ["0.20.2", "0.25.1"]}``. None if it is missing.

    Raises Rejected if it is invalid.
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
        abi = Abi(_version(fields["version"]), _version(fields["abi"]) if fields.get("abi") else None)
        return DeclaredGgml(abi, adopts)
    except (ValueError, TypeError, KeyError) as error:
        raise invalid_manifest(manifest.path, error) from error


def _version(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 100 or not value.isprintable():
        raise ValueError(f"got the version {shown(value)}; expected text such as '0.20.2'")
    return value


def _abi_in_manifest(library: Path) -> Abi | None:
    for folder in (library.parent, library.parent.parent):
        if os.path.isfile(folder / FILE):
            declared = declared_ggml(read_manifest(folder / FILE))
            return declared.abi if declared else None
    return None


def abi_of_core(core: Path) -> Abi | None:
    """The build of a ``libggml-base``: from its manifest, else from the version in the file itself. None if unknown."""
    declared = _abi_in_manifest(core)
    if declared is None:
        version = version_in(core)
        return Abi(version) if version else None
    return declared


def abi_of_library(library: Path, core: Path) -> Abi | None:
    """The build of a backend library: from its manifest, else from the ``libggml-base`` next to it. None if unknown.

    A backend library itself does not contain a version; only its base does.
    """
    declared = _abi_in_manifest(library)
    if declared is not None:
        return declared
    folder = library.parent
    # Debian: ggml/backends0/libggml-vulkan.so, with libggml-base.so.0 two folders up. Homebrew: libexec, and lib.
    folders = [folder, folder.parent, folder.parent.parent]
    folders += [folder.parent / "lib"] if folder.name == "libexec" else []
    for base in filter(None, map(core_in, folders)):
        if is_same_file(base, core):
            return abi_of_core(core)
        version = version_in(base)
        if version:
            return Abi(version)
    return None


def core_in(folder: Path) -> Path | None:
    """The ``libggml-base`` in a folder, by its shortest name; None if it is missing."""
    names = [name for name in _names(folder) if _BASE.fullmatch(name)]
    return min((folder / name for name in names), key=lambda path: (len(path.name), path.name), default=None)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (OSError, ValueError):
        return []


def version_in(base: Path) -> str | None:
    """The version in a ``libggml-base``: the only string in it that has the form of a version. None if not unique."""
    try:
        data = read_bytes(base, _MAX_LIBRARY)
    except OSError:
        return None
    found = {match.decode() for match in re.findall(rb"\0(\d+\.\d{1,3}\.\d{1,4})(?=\0)", data)}
    return found.pop() if len(found) == 1 else None
