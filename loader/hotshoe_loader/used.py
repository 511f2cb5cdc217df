"""What a probe used: the modules it imported, the modules it looked for in vain, and the native files it opened.

A kept report is valid only while all of these are the same (see cache).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["Used", "file_of", "is_unchanged"]

_MAX_NAMES = 1000


class Used:
    """Records what a probe uses, from its creation until ``finish``."""

    def __init__(self) -> None:
        self._mapped = _mapped_files()
        self._missing: dict[str, None] = {}
        sys.meta_path.append(self)  # asked last, so only about what nobody finds

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if "." not in name and len(self._missing) < _MAX_NAMES:
            self._missing[name] = None

    def finish(self) -> tuple[dict[str, str], list[str], list[str]]:
        """Stop. Return the file of each module, the missing modules, and the native files that were opened."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        tops = [name for name in list(sys.modules) if "." not in name and name not in sys.stdlib_module_names]
        files = {name: file for name in tops if name != "__main__" and (file := file_of(name))}
        missing = [name for name in self._missing if name not in sys.modules]
        return files, missing, sorted(_mapped_files() - self._mapped)


def file_of(module: str) -> str:
    """The file from which this process imports a top-level module, or has imported it; "" if it does not exist.

    Nothing is imported. For a package without an ``__init__``, its folders.
    """
    try:
        spec = getattr(sys.modules[module], "__spec__", None) if module in sys.modules else _find(module)
        file = spec and (spec.origin or ":".join(spec.submodule_search_locations or ()))
    except (Exception, SystemExit):  # a foreign finder or module can raise anything
        return ""
    return file if isinstance(file, str) and file not in ("built-in", "frozen") else ""


def _find(module: str) -> Any:
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is not None and (spec := find(module, None)) is not None:
            return spec
    return None


def is_unchanged(modules: Mapping[str, str], missing: Iterable[str]) -> bool:
    """Whether this process would import ``modules`` from the same files, and would not find ``missing`` either."""
    return all(file_of(name) == file for name, file in modules.items()) and not any(map(file_of, missing))


def _mapped_files() -> set[str]:
    """The native files that are mapped into this process; empty if the system does not list them as Linux does."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            fields = [line.rstrip("\n").split(maxsplit=5) for line in maps if ".so" in line]
    except OSError:
        return set()
    return {field[5] for field in fields if len(field) == 6 and os.path.isabs(field[5])}
