"""The result of a provider's native(), checked: where its ggml libraries are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hotshoe_core.errors.text import printable
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["GgmlLibraries", "ggml_libraries"]

_FIELDS = ("core", "directories", "kind", "name")


class GgmlLibraries(NamedTuple):
    """A provider's libraries, named as ggml names them: ``libggml-<name>[-<variant>].so``."""

    name: str
    directories: tuple[Path, ...]
    core: Path
    """The ``libggml-base`` that all of them need. It is opened first, and once in a process."""


def ggml_libraries(native: object, plugin: EntryPoint) -> GgmlLibraries:
    """Check ``{"kind": "ggml", "name": "cuda", "directories": [folder, …], "core": file}``. Raise Rejected."""
    if not isinstance(native, Mapping):
        raise _rejected(f"is {type(native).__name__}; expected a mapping", plugin)
    if sorted(map(str, native)) != list(_FIELDS):
        raise _rejected(f"has the keys {', '.join(sorted(map(str, native)))}; expected {', '.join(_FIELDS)}", plugin)
    name, directories = native["name"], native["directories"]
    if not (isinstance(name, str) and name and name.isprintable() and not set(name) & set("/\\")):
        raise _rejected(f"has the name {name!r}; expected the one in the libraries' file names, such as 'cuda'", plugin)
    if isinstance(directories, (str, bytes, os.PathLike)) or not isinstance(directories, (list, tuple)):
        raise _rejected(f"has directories of type {type(directories).__name__}; expected a list of folders", plugin)
    return GgmlLibraries(name, tuple(_path(folder, plugin) for folder in directories), _path(native["core"], plugin))


def _path(value: Any, plugin: EntryPoint) -> Path:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not os.path.isabs(text) or "\0" in text:
        raise _rejected(f"names {value!r}; expected an absolute path", plugin)
    return Path(text)


def _rejected(problem: str, plugin: EntryPoint) -> Rejected:
    return Rejected(
        Outcome.INCOMPATIBLE_API,
        f"the result of its native() {printable(problem, 300)}",
        f"report it to the authors of {plugin.distribution}",
    )
