"""What a provider of the ggml family says of its native libraries, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hotshoe_core.errors.text import printable
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["KIND", "GgmlLibraries", "ggml_libraries"]

KIND = "ggml"
"""The "kind" of what ``Provider.native()`` returns, where this room understands it."""

_FIELDS = ("core", "directories", "kind", "name")


class GgmlLibraries(NamedTuple):
    """Where a provider's libraries lie, in ggml's naming: ``libggml-<name>[-<variant>].so``.

    core: the ``libggml-base`` that every one of them needs; it is opened first, and once in a process.
    """

    name: str
    directories: tuple[Path, ...]
    core: Path


def ggml_libraries(native: object, plugin: PluginCandidate) -> GgmlLibraries:
    """Of ``{"kind": "ggml", "name": "cuda", "directories": [folder, …], "core": file}``. Raises Rejected."""
    if not isinstance(native, Mapping):
        raise _rejected(f"is {type(native).__name__}; expected a mapping", plugin)
    if sorted(map(str, native)) != list(_FIELDS):
        raise _rejected(f"has the keys {', '.join(sorted(map(str, native)))}; expected {', '.join(_FIELDS)}", plugin)
    name, directories = native["name"], native["directories"]
    if not (isinstance(name, str) and name and name.isprintable() and not set(name) & set("/\\")):
        raise _rejected(f"has the name {name!r}; expected that in the libraries' file names, such as 'cuda'", plugin)
    if isinstance(directories, (str, bytes, os.PathLike)) or not isinstance(directories, (list, tuple)):
        raise _rejected(f"has directories of type {type(directories).__name__}; expected a list of folders", plugin)
    return GgmlLibraries(name, tuple(_path(each, plugin) for each in directories), _path(native["core"], plugin))


def _path(value: Any, plugin: PluginCandidate) -> Path:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not os.path.isabs(text) or "\0" in text:
        raise _rejected(f"names {value!r}; expected an absolute path", plugin)
    return Path(text)


def _rejected(problem: str, plugin: PluginCandidate) -> Rejected:
    return Rejected(
        Outcome.INCOMPATIBLE_API,
        f"what its native() returned {printable(problem, 300)}",
        f"report it to the authors of {plugin.distribution}",
    )
