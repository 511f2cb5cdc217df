"""Run the conformance kit on a device with pytest: in this process, or in child processes that may end early.

A native library that aborts ends its process. With ``run_isolated`` that is one failed test: several children take a
share of the tests each, and if one ends during a test, another one goes on after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotshoe_core.errors import HotshoeError

if TYPE_CHECKING:
    from hotshoe_core import Backend, BackendParams
    from hotshoe_loader import Registry

__all__ = ["Results", "run_child", "run_here", "run_isolated"]

_MAX_CHILDREN = 4


class Results:
    """The outcome of each test."""

    def __init__(self) -> None:
        self.n_passed = 0
        self.names: set[str] = set()
        self.failed: dict[str, str] = {}  # test → its last line
        self.causes: dict[str, list[str]] = {}  # the tests that failed for one cause
        self.skipped: dict[str, str] = {}
        self.aborted: list[str] = []  # tests that ended their process; they are in ``failed`` too

    def add(self, name: str, outcome: str, reason: str, cause: str) -> None:
        """outcome: "passed", "failed", "skipped", "aborted", or "" for the part of a test that is not the test."""
        self.names.add(name)
        if outcome in ("failed", "aborted"):
            self.failed[name] = reason
            self.causes.setdefault(cause, []).append(name)
            self.aborted += [name] if outcome == "aborted" else []
        elif outcome == "skipped":
            self.skipped[name] = reason
        elif outcome == "passed":
            self.n_passed += 1


class _Reporter:
    """A pytest plugin that passes on each outcome, and before each test its name."""

    def __init__(self, add: Callable[[str, str, str, str], None], start: Callable[[str], None] | None = None) -> None:
        self._add = add
        self._start = start

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._start is not None:
            self._start(_name(nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = _name(report.nodeid)
        if report.failed:
            self._add(name, "failed", _reason(report), _cause(name, report))
        elif report.skipped:
            why = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            self._add(name, "skipped", str(why), "")
        else:
            self._add(name, "passed" if report.when == "call" else "", "", "")


def _name(nodeid: str) -> str:
    return nodeid.partition("::TestDevice::")[2] or nodeid


def _reason(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(getattr(crash, "message", report.longrepr)).strip()


def _cause(name: str, report: Any) -> str:
    """Equal for tests that fail for the same cause: wrong numbers of one op, or one error raised at one place."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None:
        return _reason(report)
    if Path(crash.path).name == "kit.py":
        return _op(name)
    line, *_ = _reason(report).splitlines() or [""]
    return f"{crash.path}:{crash.lineno}: {re.sub('[^A-Za-z]+', ' ', line)}"


def run_here(registry: Registry, device: str, k: str | None, *, first: bool, plugins: Sequence[Any] = ()) -> Results:
    """Run the tests that match ``k`` in this process. first: stop at the first failure. plugins: more, for pytest.

    Raises HotshoeError if pytest is not installed, or if it fails.
    """
    pytest = _pytest()
    from hotshoe_core.testing import on_device

    def opener(params: BackendParams) -> Backend:
        return registry.open(device, params)

    on_device.opener = opener
    results = Results()
    options = ["--pyargs", "hotshoe_core.testing.on_device", "-p", "no:cacheprovider", "-c", os.devnull, "-q"]
    options += ["--no-header", "--no-summary", "--tb=no", "-p", "no:warnings"]
    options += ["--noconftest"]  # those of the current folder are for other tests
    options += ["-k", k] if k else []
    options += ["-x"] if first else []
    code = pytest.main(options, plugins=[_Reporter(results.add), *plugins])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise HotshoeError(f"pytest failed with exit code {int(code)}", hint="the output of pytest names the cause")
    return results


def _pytest() -> Any:
    try:
        import pytest
    except ImportError as error:
        raise HotshoeError("the conformance kit needs pytest", hint="pip install pytest") from error
    return pytest


# In children


def run_isolated(device: str, k: str | None, *, first: bool, limit: float) -> Results:
    """Run the tests in child processes. A test that ends its process fails as "aborted"; the others go on.

    limit: the seconds that one test may take.

    Raises HotshoeError as ``run_here`` does, and if a child ends before its first test.
    """
    _pytest()
    results, stop = Results(), threading.Event()
    n = min(_MAX_CHILDREN, os.cpu_count() or 1)
    shares = [_Share(device, k, i, n, results, stop, first=first, limit=limit) for i in range(n)]
    try:
        for share in shares:
            share.start()
        while not stop.wait(0.1) and any(share.is_alive() for share in shares):
            pass
    finally:  # also at Ctrl-C
        stop.set()
        for share in shares:
            share.end()
        for share in shares:
            share.join()
    for share in shares:
        if share.error is not None:
            raise share.error
    return results


_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from hotshoe.cli._kit import run_child; run_child()"
"""The program of a child. It imports from where its parent does: ``-I`` adds no other folders."""
_EXIT = "the end of the process"
"""Stands for a test, if a child ends badly after its last one."""
_adding = threading.Lock()


class _Share(threading.Thread):
    """Every ``n``-th test, run by one child after the other until all are done."""

    def __init__(
        self,
        device: str,
        k: str | None,
        i: int,
        n: int,
        results: Results,
        stop: threading.Event,
        *,
        first: bool,
        limit: float,
    ) -> None:
        super().__init__(name="hotshoe-conform", daemon=True)
        self.error: HotshoeError | None = None
        self._job: dict[str, Any] = {"device": device, "k": k, "share": i, "of": n, "done": []}
        self._results = results
        self._stopped = stop
        self._first = first
        self._limit = limit
        self._process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        try:
            while not self._stopped.is_set() and self._run_child():
                pass
        except Exception as error:  # such as a child that cannot be started: its tests must not count as passed
            self.error = HotshoeError(f"a share of the tests was not run: {error}")
            self._stopped.set()

    def end(self) -> None:
        """End the child, if one runs."""
        if self._process is not None:
            self._process.kill()

    def _run_child(self) -> bool:
        """Run the tests that are not done. Return whether there are more: then the child ended during a test."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
            self._process = process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=printed,
                text=True,
            )
            if self._stopped.is_set():
                self.end()
            running, has_ended, late = None, False, threading.Event()
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                json.dump(self._job, process.stdin)
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            timer = self._timer(late)
            for line in process.stdout:
                timer.cancel()
                if not line.endswith("\n"):
                    break  # the child died in the middle of it
                timer = self._timer(late)
                kind, *values = json.loads(line)
                if kind == "start":
                    (running,) = values
                elif kind == "end":
                    has_ended = True
                else:
                    self._add(*values)
            timer.cancel()
            process.stdout.close()
            process.wait()
            if self._stopped.is_set() or (has_ended and process.returncode == 0):
                return False
            if has_ended:
                running = _EXIT
            how = _how(process.returncode) if not late.is_set() else f"took more than {self._limit:g} s and was ended"
            printed.seek(0)
            last = [line.strip() for line in printed.read().splitlines() if line.strip()][-1:]
            reason = f"its process {how}" + "".join(f"; its last line: {line}" for line in last)
            if running is None:
                self.error = HotshoeError(f"the kit did not begin: {reason}", hint="leave out --isolate to see more")
                self._stopped.set()
                return False
            self._add(running, "aborted", f"aborted: {reason}", f"aborted: {_op(running)}")
            return not has_ended

    def _timer(self, late: threading.Event) -> threading.Timer:
        def end() -> None:
            late.set()
            self.end()

        timer = threading.Timer(self._limit, end)
        timer.daemon = True
        timer.start()
        return timer

    def _add(self, name: str, outcome: str, reason: str, cause: str) -> None:
        with _adding:
            self._results.add(name, outcome, reason, cause)
        self._job["done"].append(name)
        if self._first and outcome in ("failed", "aborted"):
            self._stopped.set()
            self.end()


def _how(code: int) -> str:
    """How a process ended, from its exit code."""
    if code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _op(name: str) -> str:
    """What a test is about: the op of its case, or its own name."""
    return (name.partition("[")[2] or name).split()[0]


class _Selection:
    """A pytest plugin that selects the tests of a share that are not done."""

    def __init__(self, share: int, of: int, done: Sequence[str]) -> None:
        self._share = share
        self._of = of
        self._done = frozenset(done)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        mine = items[self._share :: self._of]
        items[:] = [item for item in mine if _name(item.nodeid) not in self._done]


def run_child() -> None:
    """Run a share of the tests. Reads a job from stdin; writes a line of JSON for each start and each outcome."""
    from hotshoe_loader import load_all

    job = json.load(sys.stdin)
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what pytest and libraries print

    def send(*values: Any) -> None:
        channel.write(json.dumps(values) + "\n")
        channel.flush()

    reporter = _Reporter(lambda *outcome: send("add", *outcome), lambda name: send("start", name))
    selection = _Selection(job["share"], job["of"], job["done"])
    run_here(load_all(device=job["device"]), job["device"], job["k"], first=False, plugins=[reporter, selection])
    send("end")
