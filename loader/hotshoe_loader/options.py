"""The options of ``load_all``: its arguments and their environment variables, as one comparable value."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hotshoe_core.errors import OptionError
from hotshoe_core.errors.text import printable

__all__ = ["DEFAULT_TIMEOUT", "NAMED_TIMEOUT", "PROBE_VARIABLE", "Limits", "Options", "normalise"]

DEFAULT_TIMEOUT = 10.0
"""Seconds that a probe may take. A CPU plugin takes 0.3 s; a GPU runtime takes some seconds at its first start."""

NAMED_TIMEOUT = 300.0
"""Seconds that the test of a device may take if the caller named it: its first start may compile shaders."""

PROBE_VARIABLE = "HOTSHOE_PROBE"
"""An environment variable that is set in a probe's child process, and so in all processes that it starts. It identifies
processes that left the child's session, and tells load_all() that a plugin in a probe has called it."""


def normalise(name: str) -> str:
    """The form in which names are compared, the same as on PyPI: lower case, each run of ``-_.`` as one dash."""
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


class Limits(NamedTuple):
    """Seconds that the probe of a plugin may take."""

    plugin: float
    """For its import and for listing its devices."""
    device: float
    """For computing on each device."""
    given: bool
    """Whether the user gave them. Otherwise the plugin's manifest may ask for more."""


@dataclass(frozen=True, slots=True)
class Options:
    """The effective options: arguments and environment variables together, the argument's names first."""

    prefer: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    block: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    relative: tuple[str, ...] = ()
    """Relative paths in HOTSHOE_PATH. They are not searched."""
    allow: tuple[str, ...] = ()
    system: bool = False
    """Also search the folders where other software installs ggml's libraries."""
    timeout: float | None = None
    """Seconds for each probe, and for each device in it; None if the user gave no limit."""
    ggml: str = ""
    """The folder of a foreign set of ggml libraries to adopt, or ""."""
    from_variables: frozenset[tuple[str, str]] = field(default=frozenset(), compare=False)
    """The option and the name of each name of ``prefer`` and ``require`` that an environment variable gave."""

    def limits(self, named: bool) -> Limits:
        """The limits for the probe of a plugin. named: the caller named a device of this plugin and waits for it."""
        if self.timeout is not None:
            return Limits(self.timeout, self.timeout, given=True)
        return Limits(DEFAULT_TIMEOUT, NAMED_TIMEOUT if named else DEFAULT_TIMEOUT, given=False)

    def written(self, option: str, name: str) -> str:
        """How the user gave a name of ``prefer`` or ``require``: "HOTSHOE_PREFER=gpu", or "prefer='gpu'" in Python."""
        if (option, name) in self.from_variables:
            return f"HOTSHOE_{option.upper()}={printable(name, 100)}"
        return f"{option}={name!r}"

    @staticmethod
    def from_arguments(
        prefer: str | Iterable[str] | None,
        require: str | Iterable[str] | None,
        block: str | Iterable[str] | None,
        paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None,
        environ: Mapping[str, str],
        *,
        allow: str | Iterable[str] | None = None,
        system: bool | None = None,
        timeout: float | None = None,
        ggml: str | os.PathLike[str] | None = None,
    ) -> Options:
        """The options from the arguments of ``load_all`` and the environment.

        Raises TypeError if an argument has the wrong type, OptionError if a time or a folder is invalid.
        """
        prefer, require = _names("prefer", prefer), _names("require", require)
        from_variables = {
            (option, name)
            for option, given in (("prefer", prefer), ("require", require))
            for name in _names(option, None, environ.get(f"HOTSHOE_{option.upper()}"))
            if name not in given
        }
        folders = [Path(os.path.abspath(path)) for path in _as_list("paths", "folder", paths, (str, os.PathLike))]
        relative = []
        # An empty or relative entry would mean the current directory. It is not searched, because then the owner of
        # that directory could choose the native code that the program runs.
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
            allow=tuple(sorted(map(normalise, _names("allow", allow, environ.get("HOTSHOE_ALLOW"))))),
            system=_flag(system, environ.get("HOTSHOE_SYSTEM")),
            timeout=_seconds(timeout, environ.get("HOTSHOE_PROBE_TIMEOUT")),
            ggml=_folder(ggml, environ.get("HOTSHOE_GGML")),
            from_variables=frozenset(from_variables),
        )


def _folder(given: Any, variable: str | None) -> str:
    """An existing folder as an absolute path, or "". A path in the variable must be absolute."""
    what = "load_all(ggml=...)"
    if given is None:
        what, given = "HOTSHOE_GGML", (variable or "").strip()
        if not given:
            return ""
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"{what} takes a folder, got {given!r}")
    folder = os.path.abspath(given)
    if not os.path.isdir(folder) or (what == "HOTSHOE_GGML" and not os.path.isabs(given)):
        raise OptionError(f"{what} takes the absolute path of an existing folder, got {os.fspath(given)!r}")
    return folder


def _flag(given: Any, variable: str | None) -> bool:
    if given is None:
        return (variable or "").strip().lower() not in ("", "0", "no", "off", "false")
    if not isinstance(given, bool):
        raise TypeError(f"load_all(system=...) takes True or False, got {given!r}")
    return given


def _seconds(given: Any, variable: str | None) -> float | None:
    """The argument, else the variable, else None: a number of seconds above 0."""
    if given is None:
        text = (variable or "").strip()
        if not text:
            return None
        what, given = "HOTSHOE_PROBE_TIMEOUT", text
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
    elif isinstance(given, (int, float)) and not isinstance(given, bool):
        what, seconds = "load_all(timeout=...)", float(given)
    else:
        raise TypeError(f"load_all(timeout=...) takes seconds, got {given!r}")
    if not 0 < seconds < 1e6:
        raise OptionError(f"{what} takes a number of seconds greater than 0, got {given!r}")
    return seconds


def _names(option: str, given: str | Iterable[str] | None, variable: str | None = None) -> tuple[str, ...]:
    names = _as_list(option, "name", given, (str,))
    return tuple(dict.fromkeys(name.strip() for name in [*names, *(variable or "").split(",")] if name.strip()))


def _as_list(option: str, what: str, given: Any, types: tuple[type, ...]) -> list[Any]:
    """Normalise to a list: None → [], a single value → [value]. Raise TypeError for another type."""
    if given is None or isinstance(given, types):
        return [] if given is None else [given]
    items = list(given) if isinstance(given, Iterable) else [given]
    for item in items:
        if not isinstance(item, types):
            raise TypeError(f"load_all({option}=...) takes a {what} or several {what}s, got {item!r}")
    return items
