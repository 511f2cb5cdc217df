"""A user's program in the zoo: calls load_all, checks whether its process was changed, computes, and reports.

    python visitor.py REPORT OPTIONS

REPORT is the JSON file it writes, as its output belongs to the test: there must be none. OPTIONS are load_all's, as
JSON, and "compute": the devices to compute on.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import hotshoe
from hotshoe_loader import child_process


def state() -> dict[str, Any]:
    """Everything in the process that a plugin could change."""
    mask = os.umask(0)
    os.umask(mask)
    return {
        "environment": dict(os.environ),
        "signal handlers": {int(s): repr(signal.getsignal(s)) for s in signal.valid_signals()},
        "signal mask": sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "timer": signal.getitimer(signal.ITIMER_REAL),
        "directory": os.getcwd(),
        "umask": mask,
        "sys.path": list(sys.path),
        "streams": [repr(sys.stdin), repr(sys.stdout), repr(sys.stderr)],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "open files": open_files(),
        "children": children(),
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[Any]]:
    return {key: [before[key], after[key]] for key in before if before[key] != after[key]}


def open_files() -> list[str]:
    folder, found = Path("/proc/self/fd"), []
    for entry in folder.iterdir():
        try:
            target = os.readlink(entry)
        except OSError:  # the one that lists the folder
            continue
        if not target.startswith("/proc/"):
            found.append(f"{entry.name} -> {target}")
    return sorted(found)


def children() -> list[str]:
    """The child processes of this process, including zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, _, rest = stat.read_text().partition(" (")
        except OSError:
            continue
        name, _, fields = rest.rpartition(") ")
        if int(fields.split()[1]) == os.getpid():
            found.append(f"{name} {pid} {fields[0]}")
    return found


class CountedChildren:
    """How many probes run at once, from its creation on."""

    def __init__(self) -> None:
        self.most = self._now = 0
        start, kill = child_process._Child.start, child_process._Child.kill

        def counted_start(child: Any, wake: Any) -> None:
            start(child, wake)
            self._now += 1
            self.most = max(self.most, self._now)

        def counted_kill(child: Any) -> None:
            self._now -= 1
            kill(child)

        child_process._Child.start, child_process._Child.kill = counted_start, counted_kill  # type: ignore[method-assign]


def compute(registry: Any, device: str) -> list[float]:
    import numpy as np

    with registry.open(device) as backend, backend.new_context() as ctx:
        x, y = ctx.input("x", (2, 3)), ctx.input("y", (3, 1))
        z = x @ y + x.sum(axis=1, keepdims=True)
        ctx.forward(z).compute({x: np.arange(6).reshape(2, 3), y: np.ones((3, 1))})
        return [float(value) for value in z.read().ravel()]


def main() -> None:
    report, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    asked = options.pop("compute")
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    logging.getLogger("hotshoe").addHandler(handler)

    before = state()
    counted = CountedChildren()
    registry = hotshoe.load_all(**options)
    after = state()
    sys.stdout.flush()
    printed = [os.pread(fd, 200, 0).decode(errors="replace") for fd in (1, 2)]  # both are files
    answers = {}
    for device in asked:
        try:
            answers[device] = compute(registry, device)
        except Exception as error:
            answers[device] = f"{type(error).__name__}: {error}"  # type: ignore[assignment]
    text = json.dumps(
        {
            "verdicts": [verdict.to_json() for verdict in registry.verdicts],
            "devices": [device.name for device in registry.devices],
            "changed": changes(before, after),
            "changed later": changes(before, state()),
            "printed": printed,
            "most at once": counted.most,
            "answers": answers,
            "messages": messages,
        }
    )
    part = report.with_name(f"report.{os.getpid()}")  # an animal may have made two processes of this one
    part.write_text(text)
    part.replace(report)


if __name__ == "__main__":
    main()
