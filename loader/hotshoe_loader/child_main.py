"""Entry point of a probe's child process: reads a job from stdin, sends its steps and the report through a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

from hotshoe_loader.child_steps import probe_plugin
from hotshoe_loader.report import Job, Report
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["main"]


def main(data: dict[str, Any]) -> None:
    """Probe one plugin, and end the process. The start-up code of child_process sets ``sys.path`` before the call.

    data: "job" (see ``Job.to_json``) and "limit", the seconds that a step may take.
    """
    # What the plugin prints goes to stderr. Only this function writes to the pipe that was stdout.
    channel = os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _limit_process()

    def send(message: dict[str, Any]) -> None:
        line = memoryview(json.dumps(message).encode() + b"\n")
        while line:
            line = line[os.write(channel, line) :]

    def announce(step: str, doing: str) -> None:
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 2 * data["limit"] + 30)  # SIGALRM ends it if the parent does not
        send({"step": step, "doing": doing})

    # Import NumPy and core's contract now, because the plugin's time limit starts after this import.
    import hotshoe_core.contract.backend  # noqa: F401

    announce("start", "starting")
    try:
        report = probe_plugin(Job.from_json(data["job"]), announce)
    except KeyboardInterrupt:  # not the user's: Ctrl-C does not reach this session
        report = Report(Rejected(Outcome.CRASHED, "it raised KeyboardInterrupt", "report it to its authors"))
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    send({"report": report.to_json()})
    # Not sys.exit: the exit handlers of plugins may crash or hang, and are not needed here.
    os._exit(0)


def _limit_process() -> None:
    """Set limits that hold even if the parent process has ended."""
    if sys.platform == "win32":
        return
    import resource

    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash leaves no core file
    with contextlib.suppress(OSError):
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # if memory runs out, the kernel ends this process first
