"""The child's end of a probe: a job comes from stdin, steps and report go to a private pipe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

from hotshoe_loader.report import Job, Report
from hotshoe_loader.trial import try_plugin
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["main"]


def main(data: dict[str, Any]) -> None:
    """Called by the start-up code in children.py, when ``sys.path`` is that of the parent. Does not return."""
    # What the plugin prints goes where its errors go; the pipe that was stdout is ours alone.
    channel = os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _restrain(data["limit"])

    def send(message: dict[str, Any]) -> None:
        line = memoryview(json.dumps(message).encode() + b"\n")
        while line:
            line = line[os.write(channel, line) :]

    def announce(step: str, doing: str) -> None:
        send({"step": step, "doing": doing})

    # What a plugin's devices are tested with, NumPy above all: the clock of the plugin runs from then on.
    import hotshoe_core.contract.backend  # noqa: F401

    announce("start", "starting")
    try:
        report = try_plugin(Job.from_json(data["job"]), announce)
    except KeyboardInterrupt:  # not the user's: Ctrl-C does not reach this session
        report = Report(Rejected(Outcome.CRASHED, "it raised KeyboardInterrupt", "report it to its authors"))
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    send({"report": report.to_json()})
    # Not sys.exit: what plugins leave to be done at exit may crash or hang, and matters to nobody here.
    os._exit(0)


def _restrain(limit: float) -> None:
    """Limits that hold even if the parent is gone."""
    if sys.platform == "win32":
        return
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no file
    signal.setitimer(signal.ITIMER_REAL, 2 * limit + 30)  # SIGALRM ends us if nobody else does
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # where memory runs out, this process goes first
