"""The number of threads to compute with, and whether the system starts them."""

from __future__ import annotations

import math
import os
import threading
from pathlib import Path

from hotshoe_core.errors import NativeError
from hotshoe_ggml.parallel import start_threads

__all__ = ["default_threads", "require_threads"]


def default_threads() -> int:
    """The number of physical cores that this process may use. Two threads of one core share its multipliers.

    Respects CPU affinity and, in a container, the CPU quota of the control group.
    """
    try:
        allowed = os.sched_getaffinity(0)
    except AttributeError:  # macOS, Windows
        return max(1, (os.cpu_count() or 2) // (1 if os.name == "posix" else 2))
    cores = {_core(cpu) for cpu in allowed}
    quota = _quota()
    return max(1, len(cores) if math.isinf(quota) else min(len(cores), math.ceil(quota)))


def _core(cpu: int) -> str:
    """The siblings of a CPU as Linux lists them: the same text for the threads of one core."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def _quota() -> float:
    """The number of CPUs that the control group allows; infinity without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return math.inf


def require_threads(device: str, n: int) -> None:
    """Raise NativeError unless the system starts ``n`` more threads now: if ggml gets fewer, it ends the process."""
    over = threading.Event()
    started = start_threads(n, over.wait)
    over.set()
    for thread in started:
        thread.join()
    if len(started) < n:
        raise NativeError(
            f"{device}: n_threads is {n + 1}, but the system starts only {len(started)} in addition to this one",
            hint=f"n_threads={len(started) + 1}, or a higher limit: see `ulimit -u` and `ulimit -v`",
        )
