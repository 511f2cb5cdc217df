"""How many threads to compute with."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["default_threads"]


def default_threads() -> int:
    """Physical cores this process may use: two threads of one core share its multipliers and gain nothing.

    Honours CPU affinity and, in a container, the CPU quota of the control group.
    """
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # macOS, Windows
        return max(1, (os.cpu_count() or 2) // (1 if os.name == "posix" else 2))
    cores = {_core(cpu) for cpu in allowed}
    quota = _quota()
    return max(1, len(cores) if math.isinf(quota) else min(len(cores), math.ceil(quota)))


def _core(cpu: int) -> str:
    """The siblings of a CPU as Linux lists them, equal for the threads of one core."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _quota() -> float:
    """CPUs' worth of time the control group allows; infinity without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf
