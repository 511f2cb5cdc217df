"""List the native libraries that are mapped into this process; in core because loader and plugins both need it.

Two builds of one library under one name cannot be used in one process: a library opened later binds to the first build.
The loader and the plugins both check this, and neither may import the other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["is_same_file", "mapped_libraries"]


def mapped_libraries(stem: str) -> list[str]:
    """Paths of mapped libraries named ``[lib]<stem>.…`` or ``[lib]<stem>-…``, each once, in the order of addresses.

    Returns [] if the platform cannot list them. A file that was replaced on disk meanwhile, for example by an upgrade,
    is listed with its old path.
    """
    if sys.platform.startswith("linux"):
        paths = _linux(stem)
    elif sys.platform == "darwin":
        paths = _macos()
    elif sys.platform == "win32":
        paths = _windows(stem)
    else:
        paths = []
    names = {path: os.path.basename(path).removeprefix("lib") for path in paths}
    return [path for path, name in names.items() if name.startswith((f"{stem}.", f"{stem}-"))]


def is_same_file(path: str | Path, other: str | Path) -> bool:
    """Whether two paths name the same file; if a file does not exist, whether the paths are equal."""
    try:
        return os.path.samefile(path, other)
    except OSError:
        return os.path.realpath(path) == os.path.realpath(other)


def _linux(stem: str) -> list[str]:
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            # address perms offset dev inode path: the path may contain blanks
            fields = [line.rstrip("\n").split(maxsplit=5) for line in maps if stem in line]
    except OSError:
        return []
    # Linux appends " (deleted)" if the file was replaced while the process runs
    return [field[5].removesuffix(" (deleted)") for field in fields if len(field) == 6]


def _macos() -> list[str]:
    import ctypes  # 2 ms, and not needed on Linux

    dyld = ctypes.CDLL(None)
    dyld._dyld_get_image_name.restype = ctypes.c_char_p
    return [os.fsdecode(dyld._dyld_get_image_name(i) or b"") for i in range(dyld._dyld_image_count())]


def _windows(stem: str) -> list[str]:
    import ctypes

    kernel32 = getattr(ctypes, "windll").kernel32  # noqa: B009 - absent from the stubs off Windows
    kernel32.GetModuleHandleW.restype = ctypes.c_void_p
    kernel32.GetModuleFileNameW.argtypes = [ctypes.c_void_p, ctypes.c_wchar_p, ctypes.c_uint32]
    handle = kernel32.GetModuleHandleW(f"{stem}.dll")
    if not handle:
        return []
    name = ctypes.create_unicode_buffer(32768)
    kernel32.GetModuleFileNameW(handle, name, len(name))
    return [name.value]
