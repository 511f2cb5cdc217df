"""What a plugin changes in the process it is imported and opened in; what was the user's is put back.

Environment variables, signal handlers, timer, umask, working directory, streams, hooks, built-in functions, tracing,
limits, the locale, the root logger, NumPy's error handling, ``sys.path``. Not noticed: what lies inside other modules.
What another thread changes at the same time cannot be told from it.
"""

from __future__ import annotations

import builtins
import gc
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from hotshoe_core.text import printable

__all__ = ["ProcessChanges"]


class ProcessChanges:
    """The state of this process at one moment; ``put_back`` returns to it and tells what had changed since."""

    def __init__(self) -> None:
        self._environ = dict(os.environ)
        self._handlers = _handlers()
        self._caught = _caught()
        self._builtins = dict(builtins.__dict__)
        self._path = list(sys.path)
        self._facets = [(facet, facet.read()) for facet in _FACETS]

    def put_back(self) -> list[str]:
        """Gives back what was the user's: the values that were there, handlers, the working directory.

        What was added stays: a variable that nobody else had set, a built-in function, an entry of ``sys.path`` (behind
        the others); the plugin may need it later. Handlers that native code installed stay: Python cannot put back
        what it does not know. Returns the changes in words. Values are not shown: an environment may hold secrets.
        """
        words = self._built_in()  # first: what follows is written with open, sorted and the like
        now = dict(os.environ)
        for name in sorted(self._environ.keys() | now.keys()):
            if self._environ.get(name) != now.get(name):
                how = "set" if name not in self._environ else "unset" if name not in now else "changed"
                words.append(f"environment variable {printable(name, 100)} {how}")
                if name in self._environ:
                    os.environ[name] = self._environ[name]
        words += self._signals()
        for facet, value in self._facets:
            if not facet.same(value):
                words.append(f"{facet.what} changed")
                facet.put_back(value)
        if sys.path != self._path:
            words.append("sys.path changed")
            sys.path[:] = self._path + [entry for entry in sys.path if entry not in self._path]
        return words

    def _built_in(self) -> list[str]:
        found = dict(builtins.__dict__)
        changed = [name for name in self._builtins if found.get(name) is not self._builtins[name]]
        for name in changed:
            setattr(builtins, name, self._builtins[name])
        added = [name for name in found if name not in self._builtins]
        words = [f"builtins.{printable(name, 100)} changed" for name in sorted(changed)]
        words += [f"builtins.{printable(name, 100)} added" for name in sorted(added)]
        return [each for each in words if each.split()[0] != "builtins._"]  # an interactive prompt's last value

    def _signals(self) -> list[str]:
        handlers = _handlers()
        python = {number for number in handlers if handlers[number] != self._handlers.get(number)}
        native = (_caught() ^ self._caught) - python
        if threading.current_thread() is threading.main_thread():  # Python lets no other one set handlers
            for number in python:
                if self._handlers.get(number) is not None:
                    signal.signal(number, self._handlers[number])
        words = [f"handler of {signal.Signals(number).name} changed" for number in sorted(python)]
        return words + [f"handler of {_name(number)} changed by native code" for number in sorted(native)]


class _Facet(NamedTuple):
    """One thing that is the process's own. ``put_back`` takes what ``read`` returned."""

    what: str
    read: Callable[[], Any]
    put_back: Callable[[Any], object]
    by_identity: bool = False

    def same(self, value: Any) -> bool:
        now = self.read()
        return now is value if self.by_identity else bool(now == value)


def _attribute(module: ModuleType, name: str) -> _Facet:
    def put_back(value: Any) -> None:
        setattr(module, name, value)

    return _Facet(f"{module.__name__}.{name}", lambda: getattr(module, name), put_back, by_identity=True)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return ""


def _put_back_folder(folder: str) -> None:
    if folder:
        os.chdir(folder)


def _timer() -> bool:
    return hasattr(signal, "getitimer") and signal.getitimer(signal.ITIMER_REAL)[0] > 0


def _put_back_timer(running: bool) -> None:
    if not running:  # one of the user's that has run out meanwhile cannot be wound up again
        signal.setitimer(signal.ITIMER_REAL, 0)


def _put_back_umask(mask: list[int]) -> None:
    if mask:
        os.umask(mask[0])


def _locale() -> str | None:
    try:
        import _locale as c  # what the module locale is made of, without its own 4 ms
    except ImportError:
        return None
    return c.setlocale(c.LC_ALL)


def _put_back_locale(value: str | None) -> None:
    import _locale as c

    if value is not None:
        c.setlocale(c.LC_ALL, value)


def _root_logger() -> tuple[tuple[logging.Handler, ...], int, int]:
    return tuple(logging.root.handlers), logging.root.level, logging.root.manager.disable


def _put_back_root_logger(value: tuple[tuple[logging.Handler, ...], int, int]) -> None:
    logging.root.handlers[:], level, disabled = value
    logging.root.setLevel(level)
    logging.disable(disabled)


_NUMPY_DEFAULT = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def _numpy_errors() -> Any:
    geterr = getattr(sys.modules.get("numpy"), "geterr", None)
    return _NUMPY_DEFAULT if geterr is None else geterr()


def _put_back_numpy_errors(value: Any) -> None:
    sys.modules["numpy"].seterr(**value)


def _put_back_gc(enabled: bool) -> None:
    gc.enable() if enabled else gc.disable()


_FACETS = (
    _Facet("working directory", _folder, _put_back_folder),
    _Facet("timer", _timer, _put_back_timer),
    _Facet("umask", lambda: _status("Umask:", 8), _put_back_umask),
    *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook", "unraisablehook", "displayhook")),
    _attribute(threading, "excepthook"),
    _attribute(warnings, "showwarning"),
    _attribute(logging, "lastResort"),
    _Facet("tracing (sys.settrace)", sys.gettrace, sys.settrace, by_identity=True),
    _Facet("profiling (sys.setprofile)", sys.getprofile, sys.setprofile, by_identity=True),
    _Facet("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Facet("switch interval", sys.getswitchinterval, sys.setswitchinterval),
    _Facet("garbage collection", gc.isenabled, _put_back_gc),
    _Facet("locale", _locale, _put_back_locale),
    _Facet("root logger", _root_logger, _put_back_root_logger),
    _Facet("NumPy's error handling (np.seterr)", _numpy_errors, _put_back_numpy_errors),
)


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


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
