"""What importing a plugin changes in its process: environment variables, signal handlers, timer, umask, directory."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

__all__ = ["Traces"]


class Traces:
    """The state of this process at one moment; what has changed since, and how to undo it."""

    def __init__(self) -> None:
        self._environ = dict(os.environ)
        self._handlers = _handlers()
        self._caught = _caught()
        self._folder = _folder()
        self._timer = _timer()
        self._umask = _status("Umask:", 8)

    def changes(self) -> list[str]:
        """In words. Values are not shown: an environment may hold secrets."""
        now = dict(os.environ)
        names = sorted(self._environ.keys() | now.keys())
        words = [
            f"environment variable {name} "
            + ("set" if name not in self._environ else "unset" if name not in now else "changed")
            for name in names
            if self._environ.get(name) != now.get(name)
        ]
        handlers = _handlers()
        python = {number for number in handlers if handlers[number] != self._handlers.get(number)}
        words += [f"handler of {signal.Signals(number).name} changed" for number in sorted(python)]
        words += [
            f"handler of {_name(number)} changed by native code"
            for number in sorted((_caught() ^ self._caught) - python)
        ]
        if _folder() != self._folder:
            words.append("working directory changed")
        if _timer() and not self._timer:
            words.append("timer started")
        if _status("Umask:", 8) != self._umask:
            words.append("umask changed")
        return words

    def undo(self) -> None:
        """Gives back what was the user's: values of variables that were there, handlers, the working directory.

        A variable that was added stays: nobody else had set it, and the plugin's runtime may read it later.
        Handlers that native code installed stay: Python cannot put back what it does not know.
        """
        for name, value in self._environ.items():
            if os.environ.get(name) != value:
                os.environ[name] = value
        if threading.current_thread() is threading.main_thread():  # Python lets no other one set handlers
            for number, handler in self._handlers.items():
                if handler is not None and signal.getsignal(number) != handler:
                    signal.signal(number, handler)
        if self._folder and _folder() != self._folder:
            os.chdir(self._folder)
        if _timer() and not self._timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if self._umask and _status("Umask:", 8) != self._umask:
            os.umask(self._umask[0])


def _handlers() -> dict[int, Any]:
    return {int(number): signal.getsignal(number) for number in signal.valid_signals()}


def _caught() -> set[int]:
    """Signals with a handler, or ignored, as Linux has it; native code may have set them behind Python's back."""
    masks = _status(("SigCgt:", "SigIgn:"), 16)
    # 32 and 33 are glibc's own, set when the first thread starts
    return {number + 1 for number in range(64) for mask in masks if mask >> number & 1} - {32, 33}


def _status(fields: str | tuple[str, ...], base: int) -> list[int]:
    """Numbers of /proc/self/status; none where there is no such file."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return [int(line.split()[1], base) for line in status if line.startswith(fields)]
    except (OSError, ValueError, IndexError):
        return []


def _timer() -> bool:
    return hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""
