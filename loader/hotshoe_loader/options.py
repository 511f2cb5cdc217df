"""What ``load_all`` was asked for: its arguments and their environment variables, in one comparable value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Options", "normalise"]


def normalise(name: str) -> str:
    """The form in which names are compared, as PyPI compares them: lower case, runs of ``-_.`` made one dash."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


@dataclass(frozen=True, slots=True)
class Options:
    """Effective options. Argument and environment are both honoured, the argument's names first.

    relative: entries of HOTSHOE_PATH that are not absolute, and for that reason not searched.
    """

    prefer: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    relative: tuple[str, ...] = ()

    @staticmethod
    def of(
        prefer: str | Iterable[str] | None,
        require: str | Iterable[str] | None,
        block: str | Iterable[str] | None,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None,
        environ: Mapping[str, str],
    ) -> Options:
        """Options from the arguments of ``load_all`` and from the environment.

        Raises TypeError for an argument that is neither a name nor several.
        """
        folders = [Path(os.path.abspath(path)) for path in _several("paths", "folder", paths, (str, os.PathLike))]
        relative = []
        # An empty entry is the current directory to a shell; a relative one depends on it. Neither is searched:
        # whoever owns the folder the program happens to run in would choose the native code it runs.
        for entry in environ.get("HOTSHOE_PATH", "").split(os.pathsep):
            if os.path.isabs(entry):
                folders.append(Path(os.path.normpath(entry)))
            elif entry.strip():
                relative.append(entry)
        return Options(
            prefer=_names("prefer", prefer, environ.get("HOTSHOE_PREFER")),
            require=_names("require", require, environ.get("HOTSHOE_REQUIRE")),
            block=tuple(sorted(map(normalise, _names("block", block, environ.get("HOTSHOE_BLOCK"))))),
            paths=tuple(dict.fromkeys(folders)),
            relative=tuple(relative),
        )


def _names(option: str, given: str | Iterable[str] | None, variable: str | None) -> tuple[str, ...]:
    names = _several(option, "name", given, (str,))
    return tuple(dict.fromkeys(name.strip() for name in [*names, *(variable or "").split(",")] if name.strip()))


def _several(option: str, what: str, given: Any, types: tuple[type, ...]) -> list[Any]:
    """``given`` as a list: None is none of them, one is a list of one."""
    if given is None or isinstance(given, types):
        return [] if given is None else [given]
    items = list(given) if isinstance(given, Iterable) else [given]
    for item in items:
        if not isinstance(item, types):
            raise TypeError(f"load_all({option}=...) takes a {what} or several {what}s, got {item!r}")
    return items
