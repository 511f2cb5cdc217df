"""Starts the child processes of probes, in parallel, with limits of time and memory, and ends all that they start.

If a plugin segfaults, executes an illegal instruction, exits, hangs or uses too much memory, only its child process
ends. The step at which it ended becomes a rejection; another child process tests the rest of the plugin.

- The child reads its job from stdin, which is /dev/null before the plugin runs. It sends steps and report through the
  pipe that was its stdout. What the plugin prints goes to stderr; the last 8 KiB of it are kept.
- Each child leads its own session: SIGKILL reaches the processes that it started, and Ctrl-C does not reach it.
- Its working directory, also for temporary files, is removed after all children have ended.
- The memory limit counts resident memory without file pages. It is checked every 20 ms (macOS: 0.5 s; Windows: not at
  all). A limit on address space (RLIMIT_AS) would stop every GPU runtime: they reserve terabytes and use little.
"""

from __future__ import annotations

import contextlib
import json
import logging
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
from hotshoe_loader.options import DEFAULT_TIMEOUT, NAMED_TIMEOUT, PROBE_VARIABLE, Limits
from hotshoe_loader.report import Job, Report
from hotshoe_loader.verdict import Outcome, Rejected

__all__ = ["can_start_child", "run"]

logger = logging.getLogger("hotshoe.loader")

_START = (
    "import sys, json; data = json.load(sys.stdin.buffer); sys.path[:] = data['path']; "
    "from hotshoe_loader.child_main import main; main(data)"
)
_REPORT_IT = "report it to its authors"
_MAX_PARALLEL = 16
_TICK = 0.02  # seconds between two checks of a child's memory and time
_MAX_LINES = 40  # of the output of a child that ended early
_MAX_EXIT_DELAY = 1.0  # seconds that may pass between the end of a process's pipe and its exit status
_TOTAL_FACTOR = 6  # all probes together may take this many times the limit of one, however many there are
_MIN_COUNTED_LIMIT = 5.0  # seconds; in this total, a smaller limit of one counts as this
_MAX_START = 30.0  # seconds an interpreter may take to start; the plugin's own limit counts from then on
_MAX_MEMORY = 4 << 30
_MAX_REPORT, _MAX_OUTPUT = 8 << 20, 8 << 10  # bytes


def can_start_child() -> bool:
    """Whether this program can start child processes of ``sys.executable``, and that is a Python interpreter.

    In a frozen or embedding program it is the program itself. An isolated subinterpreter can start no process.
    """
    name = os.path.basename(sys.executable or "").lower()
    if "py" not in name or getattr(sys, "frozen", False) or sys.platform in ("emscripten", "wasi", "ios"):
        return False
    try:
        threading.Thread(target=bool, daemon=True).start()  # it cannot start such a thread either
    except RuntimeError:
        return False
    return True


def run(jobs: Sequence[Job], limits: Sequence[Limits]) -> list[Report]:
    """Probe each job in child processes and return the reports in order.

    limits: of each job, over all of its child processes. Raises OSError if no child can be started, or if all of them
    end before they reach their plugins.
    """
    with _scratch() as scratch:
        return _run(jobs, limits, scratch)


@contextlib.contextmanager
def _scratch() -> Iterator[str | None]:
    """A temporary working directory for plugins, removed at the end; None if it cannot be created."""
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


def _run(jobs: Sequence[Job], limits: Sequence[Limits], scratch: str | None) -> list[Report]:
    token = f"{os.getpid()}-{time.monotonic_ns()}"
    children = [_Child(job, limit, token, scratch) for job, limit in zip(jobs, limits)]
    total = _TOTAL_FACTOR * max(_MIN_COUNTED_LIMIT, *(limit.plugin for limit in limits))
    waiting = list(reversed(children))
    running: list[_Child] = []
    wake = threading.Event()
    parallel, began = _MAX_PARALLEL, time.monotonic()
    try:
        while waiting or running:
            if waiting and time.monotonic() - began > total:
                for child in waiting:
                    child.report = Report(_not_tested(time.monotonic() - began, len(children)), tested=False)
                waiting.clear()
            while waiting and len(running) < parallel:
                try:
                    waiting[-1].start(wake)
                except OSError:  # the system allows no more processes
                    if not running:
                        raise
                    parallel = len(running)
                else:
                    running.append(waiting.pop())
            wake.wait(_TICK)
            wake.clear()
            for child in list(running):
                if child.advance(wake):
                    running.remove(child)
        failed = [child.start_error for child in children if child.start_error is not None]
        if failed and len(failed) == len(children):
            raise failed[0]
    finally:
        for child in running:
            child.kill()
        _kill_by_token(token)  # daemons: they left their session and do not use our pipes
    return [child.report for child in children]


def _not_tested(elapsed: float, jobs: int) -> Rejected:
    return Rejected(
        Outcome.TIMED_OUT,
        f"it was not tested: the other plugins took {elapsed:.3g} s, and there are {jobs} plugins",
        "uninstall plugins you do not use, or name those you use in load_all(allow=...) or HOTSHOE_ALLOW",
    )


class _Child:
    """The child process of one job. If it ends early, another one continues the job."""

    def __init__(self, job: Job, limit: Limits, token: str, scratch: str | None) -> None:
        self._job = job
        self._scratch = scratch
        self._token = f"{token}-{id(self)}"
        self._limit = limit
        self._time_left = limit.plugin  # seconds that its steps have not used, except those that test a device
        self._device_limit = limit.device
        self._elapsed = self._memory_read_at = 0.0
        self._memory = min(_MAX_MEMORY, _physical_memory() // 2)
        self.report = Report()
        self.start_error: OSError | None = None  # set if the interpreter ended before it reached the plugin

    def start(self, wake: threading.Event) -> None:
        options: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
        flags = ["-I", *(["-B"] if sys.dont_write_bytecode else []), "-X", "faulthandler"]
        temporary = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), self._scratch) if self._scratch else {}
        self._began = self._step_began = time.monotonic()
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
        self._is_noted = False  # that its present step takes long
        self._closed_at: float | None = None  # time at which the end of its pipe was seen
        self._channel = _Channel(self._process.stdout, wake, _MAX_REPORT, keep_end=False)
        self._output = _Channel(self._process.stderr, wake, _MAX_OUTPUT, keep_end=True)
        job = {
            "path": [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)],
            "limit": max(self._limit.plugin, self._limit.device),
            "job": self._job.to_json(),
        }
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the child has already ended: advance() handles that
            self._process.stdin.write(json.dumps(job).encode())
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def advance(self, wake: threading.Event) -> bool:
        """Read the child's messages and check its limits. Return True when the report is complete."""
        report = self._read_messages()
        if report is None:
            rejected = self._rejection()
            if rejected is None:
                return False
            self.kill()
            rejected = self._with_output(rejected)
            if not self._started and not self._job.skip:
                self.start_error = OSError(f"{sys.executable}: {rejected.reason}")
            # Another child process tests the rest of the plugin, without this step.
            if self._kind in ("provider", "library", "device") and self._step not in self._job.skip:
                self._end_step()
                if self._kind == "device":
                    self._device_limit /= 2  # so that all devices that hang take no more than twice the limit
                if self._time_left > 0.1:
                    self._job.skip[self._step] = rejected
                    self._elapsed += time.monotonic() - self._began
                    with contextlib.suppress(OSError):  # if it cannot start, the end of this one is the result
                        self.start(wake)
                        return False
            report = Report(rejected)
        else:
            self.kill()
        report.elapsed = self._elapsed + time.monotonic() - self._began
        self.report = report
        return True

    def _read_messages(self) -> Report | None:
        """Read what the child has sent. Return the report once it has arrived."""
        for line in self._channel.lines():
            try:
                message = load_json(line.decode("utf-8", "replace"))
                if "report" in message:
                    return Report.from_json(message["report"])
                step, doing = str(message["step"]), str(message["doing"])
            except (ValueError, TypeError, KeyError):
                continue  # not a message of ours: a plugin wrote to the pipe
            if self._started:
                self._end_step()
            else:  # the limit counts from here, without the interpreter's start
                self._started, self._began = True, time.monotonic()
            self._step, self._doing, self._step_began = step, doing, time.monotonic()
            self._is_noted = False
        return None

    @property
    def _kind(self) -> str:
        """The kind of the present step: "provider", "library" or "device", or another."""
        return self._step.partition(":")[0]

    def _end_step(self) -> None:
        """Count the time of the present step, if it is not the test of a device, which has its own limit."""
        if self._kind != "device":
            self._time_left -= time.monotonic() - self._step_began

    def _step_limit(self) -> float:
        """Seconds that the present step may take. What hangs must leave time for the other libraries and providers."""
        if not self._started:
            return _MAX_START
        if self._kind == "device":
            return self._device_limit
        return self._time_left / 2 if self._kind in ("provider", "library") else self._time_left

    def _rejection(self) -> Rejected | None:
        """Why the child ended or must be ended; None while it may continue."""
        now = time.monotonic()
        ended = self._process.poll() is not None
        if ended:
            self._channel.finished(0.5)  # a process that it forked may hold the pipe open for longer
            return None if self._channel.has_line else self._exit_rejection()  # a last line: it may be the report
        if self._resident() > self._memory:
            return Rejected(
                Outcome.CRASHED,
                f"it used more than {self._memory / 2**30:.1f} GiB of memory while {self._doing}",
                _REPORT_IT,
            )
        taken = now - self._step_began
        if taken > self._step_limit():
            if self._is_stopped():
                return Rejected(Outcome.CRASHED, f"its process was stopped (SIGSTOP) while {self._doing}", _REPORT_IT)
            hint = "give it more time: load_all(timeout=...) or HOTSHOE_PROBE_TIMEOUT, in seconds"
            if self._kind == "device" and not self._limit.given and not self._job.patient:
                hint = (
                    f"name the device, as in load_model(path, {self._doing.rpartition(' ')[2]!r}): its first "
                    f"start may compile shaders, and is then waited for up to {NAMED_TIMEOUT:g} s; or {hint}"
                )
            return Rejected(Outcome.TIMED_OUT, f"it did not finish within {taken:.3g} s while {self._doing}", hint)
        if self._kind == "device" and taken > DEFAULT_TIMEOUT and not self._is_noted:
            self._is_noted = True
            logger.warning(
                "%s: still %s after %.0f s; a first start may compile shaders for minutes. It may take %g s",
                *(self._job.plugin.name, self._doing, taken, self._device_limit),
            )
        if self._channel.finished(0.0) and not self._channel.has_line:
            # The pipe closes before the exit status can be read, and the exit status says more. So wait for it.
            self._closed_at = now if self._closed_at is None else self._closed_at
            if now - self._closed_at > _MAX_EXIT_DELAY:
                return Rejected(Outcome.CRASHED, f"it closed the probe's pipe while {self._doing}", _REPORT_IT)
        return None

    def _exit_rejection(self) -> Rejected:
        code = self._process.returncode
        if code < 0:
            try:
                how = f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                how = f"was killed by signal {-code}"
            details: dict[str, Any] = {"signal": -code}
        elif code == 0 and sys.platform != "win32" and signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
            # subprocess reports 0 if the status is lost.
            how, details = "ended (how is unknown, because this program handles SIGCHLD)", {}
        else:
            how, details = f"ended with exit code {code}", {"exit_code": code}
        return Rejected(Outcome.CRASHED, f"its process {how} while {self._doing}", _REPORT_IT, **details)

    def _with_output(self, rejected: Rejected) -> Rejected:
        """The rejection with the last lines that the plugin printed."""
        lines = [line for line in self._output.text().splitlines() if line.strip()]
        if len(lines) > _MAX_LINES:  # the first lines, and the interpreter's message at the end
            lines = [*lines[:10], "…", *lines[11 - _MAX_LINES :]]
        printed = [line.strip() for line in lines if not line.startswith(_FAULTHANDLER)]
        if lines:
            rejected.details["output"] = [printable(line, 500) for line in lines]
        if printed:
            rejected.reason += f"; its last line: {printable(printed[-1], 200)}"
        return rejected

    def _resident(self) -> int:
        """Bytes of resident memory of the child, without file pages; 0 if unknown."""
        try:
            if sys.platform.startswith("linux"):
                with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:
                    _, resident, shared, *_ = map(int, file.read().split())
                return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
            if sys.platform == "darwin" and time.monotonic() > self._memory_read_at + 0.5:
                self._memory_read_at = time.monotonic()
                command = ["ps", "-o", "rss=", "-p", str(self._process.pid)]
                return int(subprocess.run(command, capture_output=True, check=False).stdout or 0) << 10
        except (OSError, ValueError):
            pass
        return 0

    def _is_stopped(self) -> bool:
        """Whether the child waits for SIGCONT, so that more time would not help. Linux only."""
        try:
            with open(f"/proc/{self._process.pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] in ("T", "t")
        except (OSError, IndexError):
            return False

    def kill(self) -> None:
        """End the child and everything it started, and reap it."""
        process = self._process
        if sys.platform == "win32":
            command = ["taskkill", "/T", "/F", "/PID", str(process.pid)]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
            process.kill()
        else:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # A process that created its own session may still hold the pipes open.
        if not (self._channel.finished(0.05) and self._output.finished(0.05)):
            _kill_by_token(self._token)
        for channel in (self._channel, self._output):
            channel.close(0.5)


class _Channel:
    """One pipe, read to its end by its own thread, because a full pipe would stop the child."""

    def __init__(self, pipe: Any, wake: threading.Event, limit: int, keep_end: bool) -> None:
        """limit: bytes to keep. keep_end: keep the last bytes, not the first."""
        self._pipe = pipe
        self._wake = wake
        self._limit = limit
        self._keep_end = keep_end
        self._data = b""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="hotshoe-probe", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(self._pipe.fileno(), 1 << 16):
                with self._lock:
                    self._data += data
                    if len(self._data) > self._limit:
                        self._data = self._data[-self._limit :] if self._keep_end else self._data[: self._limit]
                if not self._keep_end:
                    self._wake.set()
        self._wake.set()

    def lines(self) -> list[bytes]:
        """The complete lines that have arrived since the last call."""
        with self._lock:
            whole, newline, self._data = self._data.rpartition(b"\n")
        return whole.split(b"\n") if newline else []

    @property
    def has_line(self) -> bool:
        """Whether a complete line has arrived that ``lines`` has not returned."""
        with self._lock:
            return b"\n" in self._data

    def text(self) -> str:
        with self._lock:
            return self._data.decode("utf-8", "replace")

    def finished(self, wait: float) -> bool:
        """Whether the child's end of the pipe is closed. Waits up to ``wait`` seconds."""
        self._thread.join(wait)
        return not self._thread.is_alive()

    def close(self, wait: float) -> None:
        if self.finished(wait):  # otherwise the thread still reads from this descriptor
            self._pipe.close()


_FAULTHANDLER = ("Fatal Python error", "Current thread", "Thread 0x", "  File ", "  <no Python", "Extension modules")
"""How the lines begin that Python's faulthandler prints."""


def _kill_by_token(token: str) -> None:
    """End processes that left a child's session. They are found by the variable they inherited. Linux only."""
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
        return 2 * _MAX_MEMORY
