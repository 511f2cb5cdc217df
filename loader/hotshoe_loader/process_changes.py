"""Finds what a plugin changes in its process while it is imported and opened, and puts back what was there before.

It covers environment variables, signal handlers, timer, umask, working directory, streams, hooks, built-in functions,
tracing, limits, processors, the locale, the root logger, warning filters, random numbers, NumPy's settings, modules,
finders, ``sys.path``, and what can be called in hotshoe_core. New threads that are not daemons are reported. Changes
inside other modules, and changes that the plugin makes later, are not found.
Changes that another thread makes at the same time are attributed to the plugin.
"""

from __future__ import annotations

import builtins
import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

from hotshoe_core.errors.text import printable
from hotshoe_loader.core_changes import CoreChanges

__all__ = ["ProcessChanges"]


class ProcessChanges:
    """A snapshot of this process. ``put_back`` restores it and reports what had changed."""

    def __init__(self) -> None:
        self._environment = os.environ
        self._environ = dict(os.environ)
        self._handlers = _handlers()
        self._handled = _handled_signals()
        self._builtins = dict(builtins.__dict__)
        self._modules = dict(sys.modules)
        self._lists = [_SearchList(module, name) for module, name in _LISTS]
        self._threads = _threads()
        self._core = CoreChanges()
        self.core_changes: list[str] = []
        """Which of the texts that ``put_back`` returned are about hotshoe_core."""
        self._settings = [(setting, setting.value()) for setting in _SETTINGS]

    def put_back(self) -> list[str]:
        """Restore changed values, handlers, lists and the working directory. Return the changes as texts.

        What the plugin added stays, because it may need it later: environment variables, built-in functions, modules,
        finders, and entries of ``sys.path`` and of the warning filters (after the others). Handlers of native code
        and threads stay too, because Python cannot restore them. The texts contain no values: an environment may hold
        secrets.
        """
        changes = self._put_back_builtins()  # first: the code below uses open, sorted and other built-in functions
        changes += self._put_back_modules()
        self.core_changes = self._core.put_back()
        changes += self.core_changes
        changes += self._put_back_variables()
        changes += self._put_back_handlers()
        for setting, value in self._settings:
            changes += setting.put_back_changes(value)
        for search_list in self._lists:
            changes += search_list.put_back()
        started = _threads() - self._threads
        return changes + [f"thread {printable(thread.name, 100)!r} started" for thread in started]

    def _put_back_variables(self) -> list[str]:
        changes = []
        if os.environ is not self._environment:
            changes.append("os.environ changed")
            os.environ = self._environment  # noqa: B003 - restores the object that also sets the C library's variables
        now = dict(os.environ)
        for name in sorted(self._environ.keys() | now.keys()):
            if self._environ.get(name) != now.get(name):
                how = "set" if name not in self._environ else "unset" if name not in now else "changed"
                changes.append(f"environment variable {printable(name, 100)} {how}")
                if name in self._environ:
                    os.environ[name] = self._environ[name]
                if name == "TZ" and hasattr(time, "tzset"):
                    time.tzset()  # otherwise the plugin's time zone stays in effect
        return changes

    def _put_back_modules(self) -> list[str]:
        replaced = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        for name in replaced:
            sys.modules[name] = self._modules[name]
        return [f"sys.modules[{printable(repr(name), 100)}] changed" for name in sorted(replaced)]

    def _put_back_builtins(self) -> list[str]:
        found = dict(builtins.__dict__)
        changed = [name for name in self._builtins if found.get(name) is not self._builtins[name]]
        for name in changed:
            setattr(builtins, name, self._builtins[name])
        added = [name for name in found if name not in self._builtins]
        texts = [f"builtins.{printable(name, 100)} changed" for name in sorted(changed)]
        texts += [f"builtins.{printable(name, 100)} added" for name in sorted(added)]
        return [text for text in texts if text.split()[0] != "builtins._"]  # the last value of an interactive prompt

    def _put_back_handlers(self) -> list[str]:
        handlers = _handlers()
        python = {number for number in handlers if handlers[number] is not self._handlers.get(number)}
        native = (_handled_signals() ^ self._handled) - python
        if threading.current_thread() is threading.main_thread():  # Python allows it in this thread only
            for number in python:
                if self._handlers.get(number) is not None:
                    signal.signal(number, self._handlers[number])
        changes = [f"handler of {signal.Signals(number).name} changed" for number in sorted(python)]
        return changes + [f"handler of {_signal_name(number)} changed by native code" for number in sorted(native)]


class _SearchList:
    """A list that Python searches. ``put_back`` restores the list object, and its old entries in their order."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module, self._name = module, name
        self._list: list[Any] = getattr(module, name)
        self._entries = list(self._list)

    def put_back(self) -> list[str]:
        now = getattr(self._module, self._name, None)
        found = list(now) if isinstance(now, (list, tuple)) else []
        if now is self._list and found == self._entries:
            return []
        added = [entry for entry in found if entry not in self._entries]
        # A plugin's finder may have to come first for its imports. Folders and filters also work after the others.
        if self._name not in _FINDERS or [entry for entry in found if entry not in added] != self._entries:
            found = self._entries + added
        self._list[:] = found
        setattr(self._module, self._name, self._list)
        if self._module is warnings:
            getattr(warnings, "_filters_mutated", bool)()  # resets its cache of the filters
        return [f"{self._module.__name__}.{self._name} changed"]


_UNKNOWN: Any = object()
"""The value of a setting that did not exist yet, for example because its module was not imported."""


class _Setting(NamedTuple):
    """One setting of the process."""

    what: str
    read: Callable[[], Any]
    put_back: Callable[[Any], object] | None
    """Restores a value that ``read`` returned. None: a change is reported, but not restored."""
    by_identity: bool = False

    def value(self) -> Any:
        try:
            return self.read()
        except Exception:  # the platform has the function, but not the setting
            return _UNKNOWN

    def put_back_changes(self, value: Any) -> list[str]:
        """Restore ``value`` if the setting has changed, and return a text about that. Never raises."""
        if value is _UNKNOWN:
            return []
        try:
            now = self.read()
            if now is value if self.by_identity else now == value:
                return []
            if self.put_back is not None:
                self.put_back(value)
        except Exception as error:
            return [f"{self.what} changed, and could not be restored ({type(error).__name__})"]
        return [f"{self.what} changed"]


def _attribute(module: ModuleType, name: str) -> _Setting:
    def put_back(value: Any) -> None:
        setattr(module, name, value)

    return _Setting(f"{module.__name__}.{name}", lambda: getattr(module, name, None), put_back, by_identity=True)


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
    if not running:  # a timer of the user that has expired cannot be set again
        signal.setitimer(signal.ITIMER_REAL, 0)


def _put_back_umask(mask: list[int]) -> None:
    if mask:
        os.umask(mask[0])


def _locale() -> str | None:
    try:
        import _locale as c  # without the module locale, whose import takes 4 ms
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
    handlers, level, disabled = value
    logging.root.handlers = list(handlers)
    logging.root.setLevel(level)
    logging.disable(disabled)


_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def _numpy_errors() -> Any:
    geterr = getattr(sys.modules.get("numpy"), "geterr", None)
    return _NUMPY_ERRORS if geterr is None else geterr()


def _call_if_imported(module: str, function: str) -> Callable[[], Any]:
    """Return a function that calls ``module.function`` if the module is imported."""
    return lambda: getattr(sys.modules.get(module), function, lambda: _UNKNOWN)()


def _functions(what: str, module: str, read: str, write: str) -> _Setting:
    """A setting with two functions, ``read`` and ``write``, of a module that may not be imported."""

    def put_back(value: Any) -> None:
        function = getattr(sys.modules[module], write)
        function(**value) if isinstance(value, dict) else function(value)

    return _Setting(what, _call_if_imported(module, read), put_back)


def _numpy_random() -> Any:
    """The state of the functions of ``numpy.random``, as values that can be compared."""
    state = _call_if_imported("numpy.random", "get_state")()
    if state is _UNKNOWN:
        return state
    name, keys, *more = state
    return name, keys.tobytes(), *more


def _put_back_numpy_random(value: Any) -> None:
    numpy: Any = sys.modules["numpy"]
    name, keys, *more = value
    numpy.random.set_state((name, numpy.frombuffer(keys, numpy.uint32), *more))


def _signal_mask() -> Any:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ()) if hasattr(signal, "pthread_sigmask") else _UNKNOWN


def _processors() -> Any:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else _UNKNOWN


def _limits() -> dict[int, tuple[int, int]]:
    try:
        import resource
    except ImportError:  # Windows
        return {}
    kinds = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return {kind: resource.getrlimit(kind) for kind in kinds}


def _threads() -> set[threading.Thread]:
    """The threads that Python waits for at its end."""
    return {thread for thread in threading.enumerate() if not thread.daemon}


_FINDERS = ("meta_path", "path_hooks")
_LISTS = ((sys, "path"), *((sys, name) for name in _FINDERS), (warnings, "filters"))

_SETTINGS = (
    _Setting("working directory", _folder, _put_back_folder),
    _Setting("timer", _timer, _put_back_timer),
    _Setting("umask", lambda: _status("Umask:", 8), _put_back_umask),
    *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook", "unraisablehook", "displayhook")),
    _attribute(sys, "breakpointhook"),
    _attribute(sys, "dont_write_bytecode"),
    _attribute(threading, "excepthook"),
    _attribute(warnings, "showwarning"),
    _attribute(logging, "lastResort"),
    _Setting("tracing (sys.settrace)", sys.gettrace, sys.settrace, by_identity=True),
    _Setting("profiling (sys.setprofile)", sys.getprofile, sys.setprofile, by_identity=True),
    _Setting("recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
    _Setting("switch interval", sys.getswitchinterval, sys.setswitchinterval),
    _Setting("garbage collection", gc.isenabled, lambda enabled: gc.enable() if enabled else gc.disable()),
    _Setting("locale", _locale, _put_back_locale),
    _Setting("root logger", _root_logger, _put_back_root_logger),
    _Setting("NumPy's error handling (np.seterr)", _numpy_errors, lambda value: sys.modules["numpy"].seterr(**value)),
    _functions("NumPy's printing (np.set_printoptions)", "numpy", "get_printoptions", "set_printoptions"),
    _functions("random numbers (random)", "random", "getstate", "setstate"),
    _Setting("random numbers (np.random)", _numpy_random, _put_back_numpy_random),
    _Setting("signal mask", _signal_mask, lambda value: signal.pthread_sigmask(signal.SIG_SETMASK, value)),
    _Setting("processors this thread may use", _processors, None),
    _Setting("resource limits", _limits, None),
    _functions("flags of dlopen", "sys", "getdlopenflags", "setdlopenflags"),
    _functions("default timeout of sockets", "socket", "getdefaulttimeout", "setdefaulttimeout"),
)


def _handlers() -> dict[int, Any]:
    return {int(number): signal.getsignal(number) for number in signal.valid_signals()}


def _handled_signals() -> set[int]:
    """The signals that are handled or ignored according to Linux: native code can set handlers unknown to Python."""
    masks = _status(("SigCgt:", "SigIgn:"), 16)
    # glibc uses 32 and 33 itself, from the start of the first thread
    return {number + 1 for number in range(64) for mask in masks if mask >> number & 1} - {32, 33}


def _status(fields: str | tuple[str, ...], base: int) -> list[int]:
    """The numbers in fields of /proc/self/status; [] if there is no such file."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return [int(line.split()[1], base) for line in status if line.startswith(fields)]
    except (OSError, ValueError, IndexError):
        return []


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
