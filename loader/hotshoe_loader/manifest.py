"""``hotshoe-plugin.json``: what a plugin, or a folder of ggml libraries, says of itself before its code runs.

    {
      "format": 1,
      "api": [1, 1],                        first and last version of the plugin contract it was written for
      "ggml": {"version": "0.20.2",         the ggml its libraries were built from,
               "abi": "0972…",              and the fingerprint of the headers they share
               "adopts": ["0.20.2", "0.25.1"]},  first and last version its bindings work with, for load_all(ggml=)
      "environment": ["ACME_"]              variables (or how their names start) that change what it finds
    }

Every field but ``format`` is optional, and so is the file. It lies in the package an entry point names, or beside
(or one folder above) native libraries.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hotshoe_loader.binary import version_in
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["FILE", "Abi", "Manifest", "abi_of_core", "abi_of_library", "core_in", "find_manifest", "read_manifest"]

FILE = "hotshoe-plugin.json"
_BASE = re.compile(r"(lib)?ggml-base(\.\d+)*\.(so(\.\d+)*|dylib|dll)")


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


@dataclass(frozen=True, slots=True)
class Manifest:
    """The file's content, checked. ``api`` is None where it does not say."""

    path: Path
    api: tuple[int, int] | None = None
    ggml: Abi | None = None
    adopts: tuple[str, str] | None = None
    environment: tuple[str, ...] = ()


def find_manifest(plugin: PluginCandidate) -> Manifest | None:
    """The manifest of a plugin that is not imported; None if it brings none. Raises Rejected if it is damaged."""
    top = plugin.module.partition(".")[0]
    if not top:
        return None
    folders = [Path(plugin.location, top)] if plugin.location else []
    if not any((folder / FILE).is_file() for folder in folders):
        try:  # installed as editable: the package lies elsewhere. A top-level name is found without importing it.
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError, AttributeError):
            spec = None
        folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        if (folder / FILE).is_file():
            return read_manifest(folder / FILE)
    return None


def read_manifest(path: Path) -> Manifest:
    """Reads and checks one manifest. Raises Rejected."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict) or fields.get("format") != 1:
            raise ValueError(f'expected an object with "format": 1, got {str(fields)[:60]}')
        api = fields.get("api")
        if api is not None:
            first, last = (api, api) if isinstance(api, int) else api
            api = (int(first), int(last))
        ggml: Any = fields.get("ggml")
        adopts = None
        if ggml is not None:
            if "adopts" in ggml:
                earliest, latest = map(str, ggml["adopts"])
                adopts = (earliest, latest)
            ggml = Abi(str(ggml["version"]), str(ggml["abi"]) if ggml.get("abi") else None)
        environment = tuple(map(str, fields.get("environment", ())))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"{path} cannot be used: {type(error).__name__}: {error}",
            f"reinstall what brought it; hotshoe's docs/backends.md says what is in a {FILE}",
        ) from error
    return Manifest(path, api, ggml, adopts, environment)


def _declared(library: Path) -> Abi | None:
    for folder in (library.parent, library.parent.parent):
        if (folder / FILE).is_file():
            return read_manifest(folder / FILE).ggml
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
        if os.path.samefile(base, core):
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
    except OSError:
        return []
