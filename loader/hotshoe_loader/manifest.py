"""``hotshoe-plugin.json``: what a plugin, or a folder of native libraries, says of itself before its code runs.

    {
      "format": 1,
      "api": [1, 1],                        first and last version of the plugin contract it was written for
      "environment": ["ACME_"],             variables (or how their names start) that change what it finds
      "ggml": {…}                           of its native libraries: read by the room that knows them (ggml/cores)
    }

Every field but ``format`` is optional, and so is the file. It lies in the package an entry point names, or beside
(or one folder above) native libraries.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotshoe_core.errors.text import printable, shown
from hotshoe_loader.files import load_json, read_text
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["FILE", "Manifest", "damaged", "find_manifest", "read_manifest"]

FILE = "hotshoe-plugin.json"
_LARGEST = 1 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """The file's content, checked. ``api`` is None where it does not say. ``fields``: all of it, for other rooms."""

    path: Path
    api: tuple[int, int] | None = None
    environment: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)


def find_manifest(plugin: PluginCandidate) -> Manifest | None:
    """The manifest of a plugin that is not imported; None if it brings none. Raises Rejected if it is damaged."""
    top = plugin.module.partition(".")[0]
    if not top:
        return None
    folders = [Path(plugin.location, top)] if plugin.location else []
    if not any(os.path.isfile(folder / FILE) for folder in folders):  # Path.is_file raises for a name too long
        try:  # installed as editable: the package lies elsewhere. A top-level name is found without importing it.
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError, AttributeError):
            spec = None
        folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        if os.path.isfile(folder / FILE):
            return read_manifest(folder / FILE)
    return None


def read_manifest(path: Path) -> Manifest:
    """Reads and checks one manifest. Raises Rejected."""
    try:
        fields = load_json(read_text(path, _LARGEST))
        if not isinstance(fields, dict) or fields.get("format") != 1:
            raise ValueError(f'expected an object with "format": 1, got {shown(fields)}')
        return Manifest(path, _api(fields.get("api")), _environment(fields.get("environment", [])), fields)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error


def _api(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    versions = value if isinstance(value, list) else [value, value]
    if len(versions) != 2 or not all(isinstance(each, int) and 0 <= each < 1 << 31 for each in versions):
        raise ValueError(f'"api" is {shown(value)}; expected the first and the last version, as in [1, 1]')
    first, last = versions
    return int(first), int(last)


def _environment(value: Any) -> tuple[str, ...]:
    # What these variables hold is kept with the probe's report: an empty name would keep every secret there is.
    if not isinstance(value, list) or not all(isinstance(each, str) and each.isidentifier() for each in value):
        raise ValueError(f'"environment" is {shown(value)}; expected a list of names of variables, as in ["ACME_"]')
    return tuple(value)


def damaged(path: Path, error: Exception) -> Rejected:
    """The rejection for a manifest that cannot be used."""
    return Rejected(
        Outcome.INCOMPATIBLE_API,
        f"{path} cannot be used: {type(error).__name__}: {printable(str(error), 200)}",
        f"reinstall what brought it; hotshoe's docs/backends.md says what is in a {FILE}",
    )
