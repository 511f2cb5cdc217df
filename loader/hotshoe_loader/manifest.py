"""``hotshoe-plugin.json``, the manifest: describes a plugin or a folder of native libraries before its code runs.

    {
      "format": 1,
      "api": [2, 2],                        first and last version of the plugin contract it was written for
      "environment": ["ACME_"],             environment variables, or their prefixes, that change what it finds
      "probe_seconds": 60,                  how long its probe may take, if the user gives no limit; at most 600
      "ggml": {…}                           about its native libraries; see ggml/library_abi
    }

The file is optional, and so is every field except ``format``. It lies in the package that an entry point names, or in
the folder of native libraries or its parent.
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
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["FILE", "Manifest", "find_manifest", "invalid_manifest", "read_manifest"]

FILE = "hotshoe-plugin.json"
_MAX_MANIFEST = 1 << 20  # bytes
_MAX_PROBE = 600  # seconds


@dataclass(frozen=True, slots=True)
class Manifest:
    """The checked content of a manifest."""

    path: Path
    api: tuple[int, int] | None = None
    """First and last version of the contract; None if it does not say."""
    environment: tuple[str, ...] = ()
    probe_seconds: float = 0.0
    """How long its probe may take; 0 if it does not say."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All fields, also those that other modules read."""


def find_manifest(plugin: EntryPoint) -> Manifest | None:
    """The manifest of a plugin, without importing it; None if it has no manifest. Raise Rejected if it is invalid."""
    top = plugin.module.partition(".")[0]
    if not top:
        return None
    folders = [Path(plugin.location, top)] if plugin.location else []
    if not any(os.path.isfile(folder / FILE) for folder in folders):  # Path.is_file raises if the name is too long
        try:  # an editable installation is in another folder. Finding a top-level name does not import it.
            spec = importlib.util.find_spec(top)
        except (ImportError, ValueError, AttributeError):
            spec = None
        folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    for folder in folders:
        if os.path.isfile(folder / FILE):
            return read_manifest(folder / FILE)
    return None


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest. Raise Rejected if it is invalid."""
    try:
        fields = load_json(read_text(path, _MAX_MANIFEST))
        if not isinstance(fields, dict) or fields.get("format") != 1:
            raise ValueError(f'expected an object with "format": 1, got {shown(fields)}')
        environment, seconds = _environment(fields.get("environment", [])), _seconds(fields.get("probe_seconds", 0))
        return Manifest(path, _api(fields.get("api")), environment, seconds, fields)
    except (OSError, ValueError) as error:
        raise invalid_manifest(path, error) from error


def _api(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    versions = value if isinstance(value, list) else [value, value]
    if len(versions) != 2 or not all(isinstance(version, int) and 0 <= version < 1 << 31 for version in versions):
        raise ValueError(f'"api" is {shown(value)}; expected the first and the last version, as in [2, 2]')
    first, last = versions
    return int(first), int(last)


def _environment(value: Any) -> tuple[str, ...]:
    # The values of these variables are kept with the report: an empty prefix would keep every secret.
    if not isinstance(value, list) or not all(isinstance(name, str) and name.isidentifier() for name in value):
        raise ValueError(f'"environment" is {shown(value)}; expected a list of variable names, as in ["ACME_"]')
    return tuple(value)


def _seconds(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= _MAX_PROBE:
        raise ValueError(f'"probe_seconds" is {shown(value)}; expected a number of seconds, at most {_MAX_PROBE}')
    return float(value)


def invalid_manifest(path: Path, error: Exception) -> Rejected:
    """The rejection for a manifest that cannot be used."""
    return Rejected(
        Outcome.INCOMPATIBLE_API,
        f"{path} cannot be used: {type(error).__name__}: {printable(str(error), 200)}",
        f"reinstall the package or library it belongs to; docs/backends.md describes {FILE}",
    )
