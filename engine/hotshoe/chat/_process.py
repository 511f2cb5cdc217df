"""The process that renders chat templates, seen from the one that chats: started on first use, ended, started again.

``ask`` is all there is. One process serves a program; its second request costs what rendering costs and about 0.2 ms.
Why a process, and what limits it has: `_child.py`.
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
_START_UP = 60.0  # seconds an interpreter may take on a machine that has much to do
_ON_THE_WALL = 5 * SECONDS
_MAX_SAID = 1 << 16
_MAX_REPLY = 6 * MAX_TEXT + 4096  # a control character is written as \uXXXX


class _EndedError(Exception):
    """It ended before it had answered: ``late``, because it took too long."""

    def __init__(self, late: bool, how: str) -> None:
        super().__init__(how)
        self.late = late


class _Process:
    """One child. Not for several threads."""

    def __init__(self) -> None:
        options: dict[str, Any] = {"start_new_session": True}  # Ctrl-C is for this process, not for the child
        if sys.platform == "win32":
            options = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
        flags = ["-I", *(["-B"] if sys.dont_write_bytecode else [])]
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        self._child = subprocess.Popen(
            [sys.executable, *flags, "-c", _START, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=os.path.abspath(os.sep),
            bufsize=0,  # after a fork, two processes would flush what one had buffered
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
        return self._reply(_ON_THE_WALL, LENGTH.pack(len(request)) + request)

    def _reply(self, seconds: float, request: bytes = b"") -> dict[str, Any]:
        child = self._child
        assert child.stdin is not None
        assert child.stdout is not None
        timer = threading.Timer(seconds, self._end_late)
        timer.daemon = True
        timer.start()
        try:
            with contextlib.suppress(BrokenPipeError):  # that there is no answer says it, too
                left = memoryview(request)
                while left:
                    left = left[child.stdin.write(left) :]
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
        """Why there is no answer."""
        child = self._child
        assert child.stderr is not None
        child.kill()  # of no effect on one that has ended
        code = child.wait()
        said = _read(child.stderr, _MAX_SAID)
        late = self._late or (sys.platform != "win32" and code == -signal.SIGPROF)
        words = said.decode("utf-8", "replace").strip().splitlines()
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        return _EndedError(late, f"{how}: {printable(words[-1], 200)}" if words else how)

    def _end_late(self) -> None:
        self._late = True
        self._child.kill()

    def kill(self) -> None:
        self._child.kill()

    def end(self) -> None:
        """Idempotent."""
        self.kill()
        self._child.wait()
        self.let_go()

    def let_go(self) -> None:
        """Close the pipes, and leave the process alone: it ends when nobody holds the other ends."""
        for pipe in (self._child.stdin, self._child.stdout, self._child.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def _read(pipe: IO[bytes], size: int) -> bytes:
    """So many bytes; fewer at its end."""
    data = bytearray()
    while len(data) < size and (piece := pipe.read(size - len(data))):
        data += piece
    return bytes(data)


class _Renderer:
    """The process, when there is one. Requests of several threads take turns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            data = marshal.dumps(request)
        except ValueError:
            raise ChatTemplateError("the conversation is nested by thousands; expected what JSON can hold") from None
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
            except (OSError, RuntimeError) as error:  # no more processes, or threads
                self._drop()
                raise ChatTemplateError(
                    f"the process that renders chat templates could not be started: {error}",
                    hint="render the conversation yourself, and give model.stream the text",
                ) from error
            except BaseException:  # Ctrl-C: the next answer would be that to this request
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
            process.kill()  # whoever waits for it need wait no longer
        with self._lock:
            self._drop()

    def after_fork(self) -> None:
        """In the child of a fork: the process is the parent's, and whoever held the lock is gone."""
        self._lock = threading.Lock()
        if self._process is not None:
            _foreign.append(self._process)
            self._process.let_go()
            self._process = None


_foreign: list[_Process] = []  # never dropped: a Popen that is dropped looks after its child
_renderer = _Renderer()
atexit.register(_renderer.end)
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_renderer.after_fork)


def ask(request: dict[str, Any]) -> dict[str, Any]:
    """What `_child.answer` replies, or an "error" more: "time", or "ended" with how.

    Raises ChatTemplateError if no process can be started. In a program that is no interpreter (a frozen one) the
    answer is made here, in the sandbox and without limits.
    """
    from hotshoe_loader.child_process import can_start_child

    return _renderer.ask(request) if can_start_child() else answer(request)
