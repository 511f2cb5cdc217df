"""The parent's side of the child process that renders chat templates. `_child.py` explains why it is a process.

``ask`` starts the process on first use, and again after it has ended. A program has one such process. After the first
request, the overhead is about 0.2 ms.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import marshal
import os
import signal
import subprocess
import sys
import threading
from typing import IO, Any

from hotshoe.chat._child import LENGTH, MAX_TEXT, SECONDS, answer
from hotshoe_core.errors import ChatTemplateError
from hotshoe_core.errors.text import printable

__all__ = ["ask"]

_START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from hotshoe.chat._child import main; main()"
_START_UP = 60.0  # seconds that the interpreter may take to start on a busy machine
_MAX_ELAPSED = 5 * SECONDS
_MAX_STDERR = 1 << 16
_MAX_REPLY = 6 * MAX_TEXT + 4096  # a control character is written as \uXXXX


class _EndedError(Exception):
    """The process ended before it answered. ``late``: because it took too long."""

    def __init__(self, late: bool, reason: str) -> None:
        super().__init__(reason)
        self.late = late


class _Process:
    """One child process. Not thread-safe."""

    def __init__(self) -> None:
        options: dict[str, Any] = {"start_new_session": True}  # so that Ctrl-C does not reach the child
        if sys.platform == "win32":
            options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
        flags = ["-I", *(["-B"] if sys.dont_write_bytecode else [])]
        path = []
        for entry in sys.path:
            with contextlib.suppress(OSError, TypeError):  # "" in a folder that was removed; an entry that is not a str
                path.append(os.path.abspath(entry))
        self._child = subprocess.Popen(
            [sys.executable, *flags, "-c", _START, json.dumps(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=os.path.abspath(os.sep),
            bufsize=0,  # otherwise, after a fork, two processes would flush the same buffer
            **options,
        )
        self._late = False
        try:
            self._reply(_START_UP)
        except BaseException:
            self.end()
            raise

    @property
    def alive(self) -> bool:
        return not self._late and self._child.poll() is None

    def ask(self, request: bytes) -> dict[str, Any]:
        return self._reply(_MAX_ELAPSED, LENGTH.pack(len(request)) + request)

    def _reply(self, seconds: float, request: bytes = b"") -> dict[str, Any]:
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        timer = threading.Timer(seconds, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # the missing reply is reported below
                rest = memoryview(request)
                while rest:
                    rest = rest[child.stdin.write(rest) :]
            head = _read(child.stdout, LENGTH.size)
            size = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else _MAX_REPLY + 1
            data = _read(child.stdout, size) if size <= _MAX_REPLY else b""
            if len(data) < size:
                raise self._ended()
        finally:
            timer.cancel()
        try:
            reply: dict[str, Any] = json.loads(data.decode("utf-8", "surrogatepass"))
        except ValueError:
            raise self._ended() from None
        return reply

    def _ended(self) -> _EndedError:
        """Kill the process, and make the error that says why there is no reply."""
        child = self._child
        assert child.stderr is not None
        child.kill()  # has no effect if it has ended already
        code = child.wait()
        stderr = _read(child.stderr, _MAX_STDERR)
        late = self._late or (sys.platform != "win32" and code == -signal.SIGPROF)
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        reason = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return _EndedError(late, f"{reason}: {printable(lines[-1], 200)}" if lines else reason)

    def _end_late(self) -> None:
        self._late = True
        self._child.kill()

    def kill(self) -> None:
        self._child.kill()

    def end(self) -> None:
        """Kill the process and close its pipes. May be called again."""
        self.kill()
        self._child.wait()
        self.close_pipes()

    def close_pipes(self) -> None:
        """Close the pipes of this side. The child ends when all processes have closed theirs."""
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _read(pipe: IO[bytes], size: int) -> bytes:
    """Read ``size`` bytes, or fewer at the end of the pipe."""
    data = bytearray()
    while len(data) < size and (piece := pipe.read(size - len(data))):
        data += piece
    return bytes(data)


class _Renderer:
    """Keeps one process, if any. Requests of several threads are answered one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            data = marshal.dumps(request)
        except ValueError:
            raise ChatTemplateError("the conversation is nested too deeply; expected data that JSON can hold") from None
        with self._lock:
            try:
                if self._process is None or not self._process.alive:
                    self._drop()
                    self._process = _Process()
                reply = self._process.ask(data)
            except _EndedError as ended:
                self._drop()
                if ended.late:
                    return {"error": "time", "message": ""}
                return {"error": "ended", "message": str(ended)}
            except (OSError, RuntimeError) as error:  # the system starts no more processes or threads
                self._drop()
                raise ChatTemplateError(
                    f"the process that renders chat templates could not be started: {error}",
                    hint="render the conversation yourself, and pass the text to model.stream",
                ) from error
            except BaseException:  # after Ctrl-C, the process would answer this request instead of the next one
                self._drop()
                raise
            if reply.get("error") == "memory":
                self._drop()
            return reply

    def _drop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def end(self) -> None:
        process = self._process
        if process is not None:
            process.kill()  # first, so that a thread that waits for a reply releases the lock
        with self._lock:
            self._drop()

    def after_fork(self) -> None:
        """In a forked process: the renderer belongs to the parent, and the thread that held the lock is gone."""
        self._lock = threading.Lock()
        if self._process is not None:
            _foreign.append(self._process)
            self._process.close_pipes()
            self._process = None


_foreign: list[_Process] = []  # kept, because a deleted Popen polls its child
_renderer = _Renderer()
atexit.register(_renderer.end)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_renderer.after_fork)


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """Send a request to the child process. Return its reply, see `_child.answer`.

    There are two more errors: "time", and "ended" with the reason. A frozen program cannot start an interpreter; there
    the template is rendered in this process, in the sandbox but without limits.

    Raises ChatTemplateError if no process can be started.
    """
    from hotshoe_loader.child_process import can_start_child

    return _renderer.ask(request) if can_start_child() else answer(request)
