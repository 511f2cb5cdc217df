"""The memory of this computer: how much a process may use, and how much of that is available now.

Every device that computes in the host's memory reports these two numbers, so that `hotshoe devices`, `plan` and
`doctor` agree. Imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
from typing import Any, NamedTuple

__all__ = ["HostMemory", "host_memory"]

_V1, _V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
_HYBRID = "/sys/fs/cgroup/unified"  # where systemd mounts version 2 if version 1 is in use too


class HostMemory(NamedTuple):
    """Memory in bytes, the limits of the process's control groups (containers) counted."""

    total: int
    """The memory of the computer, or the lowest limit of a control group."""

    available: int
    """What can be allocated without swapping: free pages, and those of file caches. 0 if the system does not say."""


def host_memory(root: str = "/") -> HostMemory | None:
    """The memory this process may use; None if the system does not say.

    Linux: ``MemAvailable`` of /proc/meminfo, and the limits of control groups, versions 1 and 2. macOS: free and
    inactive pages. Windows: available physical memory.

    root: for tests, a folder that stands for "/"; then only its files are read.
    """
    found = _linux(root)
    if found is not None or root != "/":
        return found
    if sys.platform == "darwin":
        import ctypes

        return _darwin(ctypes.CDLL(None))
    if sys.platform == "win32":
        import ctypes

        return _windows(ctypes.windll.kernel32)
    return _posix()


def _linux(root: str) -> HostMemory | None:
    rows = dict(line.partition(":")[::2] for line in _read(root, "/proc/meminfo").splitlines())
    if "MemTotal" not in rows:
        return None
    total = _kilobytes(rows["MemTotal"])
    available = _kilobytes(rows.get("MemAvailable", rows.get("MemFree", "")))
    for folder, limit_file, used_file, cached in _control_groups(root):
        limit = _read(root, f"{folder}/{limit_file}").strip()
        if not limit.isdigit() or int(limit) >= total:  # "max", or a number above all memory: there is no limit
            continue
        total = int(limit)
        used = _read(root, f"{folder}/{used_file}").strip()
        # The kernel takes pages of file caches back before it refuses memory: a mapped model is not in the way.
        rows = dict(line.partition(" ")[::2] for line in _read(root, f"{folder}/memory.stat").splitlines())
        reclaimable = sum(int(rows[name]) for name in cached if rows.get(name, "").strip().isdigit())
        left = total - max(0, int(used) - reclaimable) if used.isdigit() else total
        available = min(available, left)
    return HostMemory(total, max(0, min(available, total)))


def _kilobytes(text: str) -> int:
    number = text.split()[:1]
    return int(number[0]) << 10 if number and number[0].isdigit() else 0


def _control_groups(root: str) -> list[tuple[str, str, str, tuple[str, ...]]]:
    """The process's control groups and their parents: folder, names of limit and usage, caches in memory.stat.

    In a container the path of /proc/self/cgroup may be the host's, and not exist here: the files then are at the top.
    """
    v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))
    v2 = ("memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable"))
    path_v1 = path_v2 = "/"
    for line in _read(root, "/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            path_v2 = path
        elif "memory" in controllers.split(","):
            path_v1 = path
    found = [(folder, *v2) for top in (_V2, _HYBRID) for folder in _upwards(top, path_v2)]
    return found + [(folder, *v1) for folder in _upwards(_V1, path_v1)]


def _upwards(top: str, path: str) -> list[str]:
    """``top/a/b``, ``top/a`` and ``top`` for the path ``/a/b``."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return ["/".join([top, *parts[:i]]) for i in range(len(parts), -1, -1)]


def _read(root: str, path: str) -> str:
    """The text of a file; "" if it is missing or may not be read."""
    try:
        with open(os.path.join(root, path.lstrip("/")), encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _darwin(system: Any) -> HostMemory | None:
    """From Mach's ``host_statistics64``; ``system`` is libSystem. Inactive pages count, as in psutil."""
    import ctypes

    words = ctypes.c_uint32 * 38  # HOST_VM_INFO64_COUNT: the fields of vm_statistics64 as 32-bit words
    statistics, n_words = words(), ctypes.c_uint32(38)
    total, page = _total(), os.sysconf("SC_PAGE_SIZE")
    system.mach_host_self.restype = ctypes.c_uint32
    host = ctypes.c_uint32(system.mach_host_self())
    if not total or system.host_statistics64(host, 4, ctypes.byref(statistics), ctypes.byref(n_words)):
        return HostMemory(total, 0) if total else None
    free, _active, inactive = statistics[:3]
    return HostMemory(total, min(total, (free + inactive) * page))


def _windows(kernel32: Any) -> HostMemory | None:
    """From ``GlobalMemoryStatusEx``."""
    import ctypes

    status = (ctypes.c_uint64 * 8)()  # MEMORYSTATUSEX: two 32-bit words, then seven numbers of 64 bits
    ctypes.cast(status, ctypes.POINTER(ctypes.c_uint32))[0] = ctypes.sizeof(status)
    if not kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return HostMemory(int(status[1]), int(status[2]))


def _posix() -> HostMemory | None:
    """Other systems, and Linux without /proc."""
    names = getattr(os, "sysconf_names", {})
    total = _total()
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_AVPHYS_PAGES" in names else 0
    return HostMemory(total, max(0, available)) if total else None


def _total() -> int:
    """All physical memory; 0 if the system does not say."""
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", {}):
        return 0
    return max(0, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
