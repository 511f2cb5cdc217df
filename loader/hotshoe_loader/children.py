"""Child processes for probes: side by side, each with a limit of time and memory, none outliving its probe.

A plugin that segfaults, executes an illegal instruction, exits, hangs or eats memory ends its child; the step at
which it died becomes a verdict, and what did not depend on that step is tried again in another child.

- The job goes in through stdin, which is /dev/null before the plugin runs. Steps and report come back through a pipe
  that was the child's stdout: what the plugin prints goes to stderr, of which the end is kept.
- Each child leads a session of its own, so that SIGKILL reaches the processes it started, and Ctrl-C does not reach it.
- Its current directory, and its folder for temporary files, is one that is removed when all children are over.
- Memory is what the process holds by itself (resident, not of files), watched every 20 ms (macOS: every 0.5 s; Windows:
  not). A limit on address space (RLIMIT_AS) would refuse every GPU runtime: they reserve terabytes and use little.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from hotshoe_core.errors.text import printable
from hotshoe_loader.files import load_json
from hotshoe_loader.options import PROBE_VARIABLE
from hotshoe_loader.report import Job, Report
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["available", "run"]

_START = (
    "import sys, json; data = json.load(sys.stdin.buffer); sys.path[:] = data['path']; "
    "from hotshoe_loader._child import main; main(data)"
)
_REPORT_IT = "report it to its authors"
_SIDE_BY_SIDE = 16
_TICK = 0.02
_MOST_LINES = 40  # kept of what a child said that died
_DYING = 1.0  # seconds between the end of a process's pipe and its exit status, at most
_LEAST_LIMIT = 5.0
_ALL_TOGETHER = 6  # times the limit of one: what all probes may take, however many there are
_START_UP = 30.0  # seconds an interpreter may take to start: the clock of the plugin runs from then on
_MEMORY = 4 << 30
_MOST_REPORT, _MOST_OUTPUT = 8 << 20, 8 << 10


def available() -> bool:
    """Whether a child can be started: a frozen or embedding program's executable is itself, and no interpreter."""
    name = os.path.basename(sys.executable or "").lower()
    return "py" in name and not getattr(sys, "frozen", False) and sys.platform not in ("emscripten", "wasi", "ios")


def run(jobs: Sequence[Job], limit: float) -> list[Report]:
    """The reports on ``jobs``, in order. ``limit``: seconds for each of them, over all of its children.

    Raises OSError if no child can be started, or all end before they have come to their plugins.
    """
    with _scratch() as scratch:
        return _run(jobs, limit, scratch)


@contextlib.contextmanager
def _scratch() -> Iterator[str | None]:
    """A folder for what plugins write, removed when their children are over. None where there cannot be one."""
    import shutil
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix="hotshoe-probe-")
    except OSError:  # read-only, or full
        yield None
        return
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(jobs: Sequence[Job], limit: float, scratch: str | None) -> list[Report]:
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    probes = [_Probe(job, limit, token, scratch) for job in jobs]
    waiting = list(reversed(probes))
    running: list[_Probe] = []
    wake = threading.Event()
    most, began = _SIDE_BY_SIDE, time.monotonic()
    try:
        while waiting or running:
            if waiting and time.monotonic() - began > _ALL_TOGETHER * max(limit, _LEAST_LIMIT):
                for probe in waiting:
                    probe.report = Report(_not_tried(time.monotonic() - began, len(probes)), tried=False)
                waiting.clear()
            while waiting and len(running) < most:
                try:
                    waiting[-1].start(wake)
                except OSError:  # no more processes: as many side by side as there may be
                    if not running:
                        raise
                    most = len(running)
                else:
                    running.append(waiting.pop())
            wake.wait(_TICK)
            wake.clear()
            for probe in list(running):
                if probe.advance(wake):
                    running.remove(probe)
        failed = [probe.failed for probe in probes if probe.failed is not None]
        if failed and len(failed) == len(probes):
            raise failed[0]
    finally:
        for probe in running:
            probe.kill()
        _kill_by_token(token)  # daemons: they left their session, and hold none of our pipes
    return [probe.report for probe in probes]


def _not_tried(elapsed: float, jobs: int) -> Rejected:
    return Rejected(
        Outcome.TIMED_OUT,
        f"it was not tried: {elapsed:.3g} s went to others, and there are {jobs} plugins",
        "uninstall those you do not use, or load_all(allow=...) names those you do",
    )


class _Probe:
    """One job, and the child that is at work on it."""

    def __init__(self, job: Job, limit: float, token: str, scratch: str | None) -> None:
        self._job = job
        self._scratch = scratch
        self._token = f"{token}-{id(self)}"
        self._limit = limit
        self._left = limit  # what earlier children have not used up
        self._elapsed = self._asked = 0.0
        self._memory = min(_MEMORY, _physical_memory() // 2)
        self.report = Report()
        self.failed: OSError | None = None  # the interpreter did not come to the plugin

    def start(self, wake: threading.Event) -> None:
        options: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
        flags = ["-I", *(["-B"] if sys.dont_write_bytecode else []), "-X", "faulthandler"]
        temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), self._scratch) if self._scratch else {}
        self._began = self._since = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, *flags, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._scratch or os.path.abspath(os.sep),
            env={**os.environ, **temporary, PROBE_VARIABLE: f"{self._token}-"},
            bufsize=0,
            **options,
        )
        self._step, self._doing, self._started = "start", "starting its child process", False
        self._closed: float | None = None  # when the end of its pipe was seen
        self._channel = _Channel(self._process.stdout, wake, _MOST_REPORT, keep_end=False)
        self._output = _Channel(self._process.stderr, wake, _MOST_OUTPUT, keep_end=True)
        job = {
            "path": [os.path.abspath(entry) for entry in sys.path],
            "limit": self._limit,
            "job": self._job.to_json(),
        }
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it died already: advance() will see
            self._process.stdin.write(json.dumps(job).encode())
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def advance(self, wake: threading.Event) -> bool:
        """Looks after the child. True when the report is complete; a child that died may be followed by another."""
        report = self._messages()
        if report is None:
            rejected = self._rejection()
            if rejected is None:
                return False
            self.kill()
            rejected = self._last_words(rejected)
            if not self._started and not self._job.skip:
                self.failed = OSError(f"{sys.executable}: {rejected.reason}")
            if self._step.partition(":")[0] in ("provider", "library", "device") and self._step not in self._job.skip:
                self._left -= time.monotonic() - self._began
                if self._left > 0.1:
                    self._job.skip[self._step] = rejected
                    self._elapsed += time.monotonic() - self._began
                    with contextlib.suppress(OSError):  # else the first child's end has the last word
                        self.start(wake)
                        return False
            report = Report(rejected)
        else:
            self.kill()
        report.elapsed = self._elapsed + time.monotonic() - self._began
        self.report = report
        return True

    def _messages(self) -> Report | None:
        """Takes in what the child has sent; the report, if that is there."""
        for line in self._channel.lines():
            try:
                message = load_json(line.decode("utf-8", "replace"))
                if "report" in message:
                    return Report.from_json(message["report"])
                self._step, self._doing = str(message["step"]), str(message["doing"])
            except (ValueError, TypeError, KeyError):
                continue  # not of ours: a plugin found the pipe
            if not self._started:  # the limit is the plugin's, not the interpreter's
                self._started, self._began = True, time.monotonic()
            self._since = time.monotonic()
        return None

    def _rejection(self) -> Rejected | None:
        """Why the child is over, or has to be ended; None while it may go on."""
        now = time.monotonic()
        ended = self._process.poll() is not None
        if ended:
            self._channel.finished(0.5)  # a process it has forked may hold the pipe open for longer
            return None if self._channel.waiting else self._death()  # waiting: the report came with the end
        if self._held() > self._memory:
            return Rejected(
                Outcome.CRASHED,
                f"it took more than {self._memory / 2**30:.1f} GiB of memory while {self._doing}",
                _REPORT_IT,
            )
        # One library that hangs must leave time for the others: it gets half of what is left.
        limit = self._left if not self._step.startswith("library:") else self._left / 2
        since = self._began if not self._step.startswith("library:") else self._since
        if not self._started:
            limit = _START_UP
        if now - since > limit or (self._started and now - self._began > self._left):
            return Rejected(
                Outcome.TIMED_OUT,
                f"it did not come back within {now - since:.3g} s while {self._doing}",
                "load_all(timeout=...) or HOTSHOE_PROBE_TIMEOUT gives it longer",
            )
        if self._channel.finished(0.0) and not self._channel.waiting:
            # The pipe of a process that dies is closed before its exit status is there to be read, and that says more.
            self._closed = now if self._closed is None else self._closed
            if now - self._closed > _DYING:
                return Rejected(Outcome.CRASHED, f"it closed the probe's pipe while {self._doing}", _REPORT_IT)
        return None

    def _death(self) -> Rejected:
        code = self._process.returncode
        if code < 0:
            try:
                how = f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                how = f"was killed by signal {-code}"
            details: dict[str, Any] = {"signal": -code}
        elif code == 0 and sys.platform != "win32" and signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
            # subprocess says 0 where the status is gone.
            how, details = "ended (this program's handling of SIGCHLD hides how)", {}
        else:
            how, details = f"ended with exit code {code}", {"exit_code": code}
        return Rejected(Outcome.CRASHED, f"its process {how} while {self._doing}", _REPORT_IT, **details)

    def _last_words(self, rejected: Rejected) -> Rejected:
        lines = [line for line in self._output.text().splitlines() if line.strip()]
        if len(lines) > _MOST_LINES:  # what it said first, and what the interpreter said of its end
            lines = [*lines[:10], "…", *lines[11 - _MOST_LINES :]]
        said = [line.strip() for line in lines if not _of_faulthandler(line)]
        if lines:
            rejected.details["output"] = [printable(line, 500) for line in lines]
        if said:
            rejected.reason += f"; its last line: {printable(said[-1], 200)}"
        return rejected

    def _held(self) -> int:
        """Bytes of memory the child holds by itself; 0 where that is not known."""
        try:
            if sys.platform.startswith("linux"):
                with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:
                    _, resident, shared, *_ = map(int, file.read().split())
                return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
            if sys.platform == "darwin" and time.monotonic() > self._asked + 0.5:
                self._asked = time.monotonic()
                command = ["ps", "-o", "rss=", "-p", str(self._process.pid)]
                return int(subprocess.run(command, capture_output=True, check=False).stdout or 0) << 10
        except (OSError, ValueError):
            pass
        return 0

    def kill(self) -> None:
        """Ends the child and all it has started, and reaps it."""
        process = self._process
        if sys.platform == "win32":
            command = ["taskkill", "/T", "/F", "/PID", str(process.pid)]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            process.kill()
        else:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # A process that made a session of its own still holds the pipes: no end of file comes.
        if not (self._channel.finished(0.05) and self._output.finished(0.05)):
            _kill_by_token(self._token)
        for channel in (self._channel, self._output):
            channel.close(0.5)


class _Channel:
    """One pipe, read to its end by a thread of its own: a full pipe would stop the child."""

    def __init__(self, pipe: Any, wake: threading.Event, most: int, keep_end: bool) -> None:
        self._pipe = pipe
        self._wake = wake
        self._most = most
        self._keep_end = keep_end
        self._data = b""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="hotshoe-probe", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while piece := os.read(self._pipe.fileno(), 1 << 16):
                with self._lock:
                    self._data += piece
                    if len(self._data) > self._most:
                        self._data = self._data[-self._most :] if self._keep_end else self._data[: self._most]
                if not self._keep_end:
                    self._wake.set()
        self._wake.set()

    def lines(self) -> list[bytes]:
        """Whole lines, once each."""
        with self._lock:
            whole, newline, self._data = self._data.rpartition(b"\n")
        return whole.split(b"\n") if newline else []

    @property
    def waiting(self) -> bool:
        with self._lock:
            return b"\n" in self._data

    def text(self) -> str:
        with self._lock:
            return self._data.decode("utf-8", "replace")

    def finished(self, wait: float) -> bool:
        """Whether the other side is closed."""
        self._thread.join(wait)
        return not self._thread.is_alive()

    def close(self, wait: float) -> None:
        if self.finished(wait):  # else a thread is still reading, and the descriptor is not ours to reuse
            self._pipe.close()


def _of_faulthandler(line: str) -> bool:
    starts = (
        "Fatal Python error",
        "Current thread",
        "Thread 0x",
        "  File ",
        "  <no Python frame>",
        "Extension modules",
    )
    return line.startswith(starts)


def _kill_by_token(token: str) -> None:
    """Ends processes that left a child's session, by the variable they inherited. Linux only."""
    wanted = f"{PROBE_VARIABLE}={token}-".encode()
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return
    for number in numbers:
        with contextlib.suppress(OSError):
            with open(f"/proc/{number}/environ", "rb") as file:
                found = any(entry.startswith(wanted) for entry in file.read().split(b"\0"))
            if found:
                os.kill(number, signal.SIGKILL)


def _physical_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 2 * _MEMORY
