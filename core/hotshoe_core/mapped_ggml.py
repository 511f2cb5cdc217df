"""Which ``libggml-base`` files are mapped into this process: there may only be one.

Every ggml 0.x calls its base library ``libggml-base.so.0``, so a backend library opened later binds to whichever
came first, and structs of two versions meet in one call. Here, and not in a plugin: the loader asks before it lets
a plugin open anything.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["foreign_bases", "is_mapped"]


def _linux() -> list[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            # address perms offset dev inode path: the path may hold blanks
            fields = [line.rstrip("\n").split(maxsplit=5) for line in maps if "ggml-base" in line]
    except OSError:
        return []
    return [field[5] for field in fields if len(field) == 6]


def _macos() -> list[str]:
    import ctypes  # 2 ms, and not needed on Linux

    dyld = ctypes.CDLL(None)
    dyld._dyld_get_image_name.restype = ctypes.c_char_p
    return [os.fsdecode(dyld._dyld_get_image_name(i) or b"") for i in range(dyld._dyld_image_count())]


def _windows() -> list[str]:
    import ctypes

    kernel32 = getattr(ctypes, "windll").kernel32  # noqa: B009 - absent from the stubs off Windows
    kernel32.GetModuleHandleW.restype = ctypes.c_void_p
    kernel32.GetModuleFileNameW.argtypes = [ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_uint32]
    handle = kernel32.GetModuleHandleW("ggml-base.dll")
    if not handle:
        return []
    name = ctypes.create_unicode_buffer(32768)
    kernel32.GetModuleFileNameW(handle, name, len(name))
    return [name.value]


def _bases() -> list[str]:
    """Paths of mapped base libraries, in the order of their addresses; empty where the platform cannot tell."""
    if sys.platform.startswith("linux"):
        paths = _linux()
    elif sys.platform == "darwin":
        paths = _macos()
    elif sys.platform == "win32":
        paths = _windows()
    else:
        paths = []
    names = {path: os.path.basename(path).removeprefix("lib") for path in paths}
    return [path for path, name in names.items() if name.startswith(("ggml-base.", "ggml-base-"))]


def foreign_bases(ours: Path) -> list[str]:
    """Paths of mapped ``libggml-base`` files that are not ``ours``."""
    # " (deleted)" is Linux's mark for a file replaced under a running process, as an upgrade does
    return [path for path in _bases() if not _same_file(path.removesuffix(" (deleted)"), ours)]


def is_mapped(ours: Path) -> bool:
    """Whether ``ours`` is in this process already."""
    return any(_same_file(path.removesuffix(" (deleted)"), ours) for path in _bases())


def _same_file(path: str, other: Path) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)
