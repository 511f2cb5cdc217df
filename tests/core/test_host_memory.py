"""The host's memory on machines made of files, and by stand-ins for the libraries of macOS and Windows."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from hotshoe_core.contract import host_memory as module
from hotshoe_core.contract.host_memory import HostMemory, host_memory

GIB = 1 << 30
MEMINFO = "MemTotal:       33554432 kB\nMemFree:  1024 kB\nMemAvailable:   16777216 kB\n"


@pytest.fixture
def machine(tmp_path: Path):
    """Writes files under a root: ``machine(path="text")`` returns the memory found there."""

    def write(files: dict[str, object]) -> HostMemory | None:
        for name, text in {"/proc/meminfo": MEMINFO, **files}.items():
            path = tmp_path / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n")
        return host_memory(str(tmp_path))

    return write


def test_available_memory_counts_and_free_memory_does_not(machine):
    assert machine({}) == HostMemory(32 * GIB, 16 * GIB)


def test_an_old_kernel_tells_only_free_memory(machine):
    assert machine({"/proc/meminfo": "MemTotal: 2048 kB\nMemFree: 1024 kB"}) == HostMemory(2 << 20, 1 << 20)


def test_a_machine_that_tells_nothing(tmp_path):
    assert host_memory(str(tmp_path)) is None


V1, V2 = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"


@pytest.mark.parametrize("folder", ["", "/a", "/a/b"])
@pytest.mark.parametrize("line", ["0::/a/b", "4:cpu,memory:/a/b"])
def test_the_lowest_limit_of_a_group_or_its_parents_counts(machine, folder, line):
    top, limit, used = (V2, "max", "current") if line[0] == "0" else (V1, "limit_in_bytes", "usage_in_bytes")
    found = machine(
        {
            "/proc/self/cgroup": line,
            f"{top}/memory.{limit}": 8 * GIB,
            f"{top}/memory.{used}": 2 * GIB,
            f"{top}{folder}/memory.{limit}": 4 * GIB,
            f"{top}{folder}/memory.{used}": GIB,
        }
    )
    assert found == HostMemory(4 * GIB, 3 * GIB)


def test_the_groups_of_the_host_are_seen_at_the_top_of_a_container(machine):
    files = {"/proc/self/cgroup": "0::/docker/abc", f"{V2}/memory.max": 4 * GIB, f"{V2}/memory.current": GIB}
    assert machine(files) == HostMemory(4 * GIB, 3 * GIB)


def test_both_versions_at_once(machine):
    files = {
        "/proc/self/cgroup": "4:memory:/x\n0::/y",
        f"{V1}/x/memory.limit_in_bytes": 8 * GIB,
        f"{V2}/unified/y/memory.max": 2 * GIB,
    }
    assert machine(files) == HostMemory(2 * GIB, 2 * GIB)


@pytest.mark.parametrize(
    ("files", "stat"),
    [
        ((f"{V2}/memory.max", f"{V2}/memory.current"), "anon 5\ninactive_file {}\nactive_file {}\nshmem 7"),
        (
            (f"{V1}/memory.limit_in_bytes", f"{V1}/memory.usage_in_bytes"),
            "cache 9\ntotal_inactive_file {}\ntotal_active_file {}\ninactive_file 1",
        ),
    ],
)
def test_the_pages_of_a_mapped_model_are_available(machine, files, stat):
    limit, used = files
    folder = limit.rpartition("/")[0]
    found = machine({limit: 4 * GIB, used: 3 * GIB, f"{folder}/memory.stat": stat.format(GIB, GIB)})
    assert found == HostMemory(4 * GIB, 3 * GIB)


@pytest.mark.parametrize("limit", ["max", 1 << 63, "", "nonsense"])
def test_a_group_without_a_limit(machine, limit):
    assert machine({f"{V2}/memory.max": limit, f"{V2}/memory.current": 1}) == HostMemory(32 * GIB, 16 * GIB)


def test_a_group_above_its_limit_has_nothing_available(machine):
    assert machine({f"{V2}/memory.max": GIB, f"{V2}/memory.current": 2 * GIB}) == HostMemory(GIB, 0)


def test_a_path_does_not_lead_out_of_the_control_groups(machine):
    files = {"/proc/self/cgroup": "0::/../../secret", "/secret/memory.max": 1}
    assert machine(files) == HostMemory(32 * GIB, 16 * GIB)


def test_this_machine():
    found = host_memory()
    assert found is not None
    assert 0 < found.available <= found.total


class Mach:
    """libSystem with 100 free, 7 active and 50 inactive pages; fails if asked to."""

    def __init__(self, error: int = 0) -> None:
        self.error = error

    class mach_host_self:  # noqa: N801  (a function with an attribute, as ctypes' are)
        def __new__(cls) -> int:  # type: ignore[misc]
            return 42

    def host_statistics64(self, host, flavor, statistics, n_words) -> int:
        assert (host.value, flavor, n_words._obj.value) == (42, 4, 38)
        statistics._obj[:3] = 100, 7, 50
        return self.error


@pytest.mark.skipif(sys.platform == "win32", reason="asks sysconf for the size of pages")
@pytest.mark.parametrize(("error", "pages"), [(0, 150), (5, 0)])
def test_macos(error, pages):
    import os

    found = module._darwin(Mach(error))
    assert found is not None
    assert found.available == pages * os.sysconf("SC_PAGE_SIZE")
    assert found.total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class MemoryStatus(ctypes.Structure):
    _fields_ = (
        ("dwLength", ctypes.c_uint32),
        ("dwMemoryLoad", ctypes.c_uint32),
        ("ullTotalPhys", ctypes.c_uint64),
        ("ullAvailPhys", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 5),
    )


@pytest.mark.parametrize(("works", "expected"), [(1, HostMemory(8 * GIB, 3 * GIB)), (0, None)])
def test_windows(works, expected):
    class Kernel32:
        def GlobalMemoryStatusEx(self, pointer) -> int:
            status = ctypes.cast(pointer, ctypes.POINTER(MemoryStatus)).contents
            assert status.dwLength == ctypes.sizeof(MemoryStatus)
            status.ullTotalPhys, status.ullAvailPhys = 8 * GIB, 3 * GIB
            return works

    assert module._windows(Kernel32()) == expected
