"""Threads for work in Python: start some, and run jobs on several."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

__all__ = ["run_all", "start_threads"]


def start_threads(n: int, target: Callable[[], object]) -> list[threading.Thread]:
    """Start ``n`` threads, or as many as the system allows (possibly none)."""
    started: list[threading.Thread] = []
    with contextlib.suppress(RuntimeError):
        for _ in range(n):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            started.append(thread)
    return started


def run_all(jobs: Sequence[Callable[[], object]], n_threads: int) -> None:
    """Run the jobs in their order, ``n_threads`` at a time.

    If a job raises, no further job starts. Raises its exception after the running jobs are finished.
    """
    waiting = iter(jobs)
    failed: list[BaseException] = []
    lock = threading.Lock()

    def work() -> None:
        try:
            while not failed:
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                job()
        except BaseException as error:
            failed.append(error)

    helpers = start_threads(min(n_threads, len(jobs)) - 1, work)
    work()
    for helper in helpers:
        helper.join()
    if failed:
        raise failed[0]
