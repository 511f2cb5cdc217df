"""What a plugin changes in the process it is imported and opened in; what was the user's is put back.

Environment variables, signal handlers, timer, umask, working directory, streams, hooks, built-in functions, tracing,
limits, processors, the locale, the root logger, warnings' filters, random numbers, NumPy's settings, modules, finders,
``sys.path``. Threads that Python waits for at its end are named. Not noticed: what lies inside other modules. What
another thread changes at the same time cannot be told from it.
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

__all__ = ["ProcessChanges"]


class ProcessChanges:
    """The state of this process at one moment; ``put_back`` returns to it and tells what had changed since."""

    def __init__(self) -> None:
        self._environment = os.environ
        self._environ = dict(os.environ)
        self._handlers = _handlers()
        self._caught = _caught()
        self._builtins = dict(builtins.__dict__)
        self._modules = dict(sys.modules)
        self._lists = [_List(module, name) for module, name in _LISTS]
        self._threads = _threads()
        self._facets = [(facet, facet.value()) for facet in _FACETS]

    def put_back(self) -> list[str]:
        """Gives back what was the user's: the values that were there, handlers, the working directory.

        What was added stays: a variable that nobody else had set, a built-in function, a module, an entry of
        ``sys.path`` or a filter of warnings (behind the others), a finder; the plugin may need it later. Handlers that
        native code installed stay, and so do threads: Python cannot put back what it does not know. Returns the
        changes in words. Values are not shown: an environment may hold secrets.
        """
        words = self._built_in()  # first: what follows is written with open, sorted and the like
        words += self._replaced_modules()
        words += self._variables()
        words += self._signals()
        for facet, value in self._facets:
            words += facet.put_back_changes(value)
        for each in self._lists:
            words += each.put_back()
        words += [f"thread {printable(each.name, 100)!r} started" for each in _threads() if each not in self._threads]
        return words

    def _variables(self) -> list[str]:
        words = []
        if os.environ is not self._environment:
            words.append("os.environ changed")
            os.environ = self._environment  # noqa: B003 - back to the one that the C library knows of
        now = dict(os.environ)
        for name in sorted(self._environ.keys() | now.keys()):
            if self._environ.get(name) != now.get(name):
                how = "set" if name not in self._environ else "unset" if name not in now else "changed"
                words.append(f"environment variable {printable(name, 100)} {how}")
                if name in self._environ:
                    os.environ[name] = self._environ[name]
                if name == "TZ" and hasattr(time, "tzset"):
                    time.tzset()  # else the time zone stays the plugin's
        return words

    def _replaced_modules(self) -> list[str]:
        replaced = [name for name, module in self._modules.items() if sys.modules.get(name) is not module]
        for name in replaced:
            sys.modules[name] = self._modules[name]
        return [f"sys.modules[{printable(repr(name), 100)}] changed" for name in sorted(replaced)]

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
        python = {number for number in handlers if handlers[number] is not self._handlers.get(number)}
        native = (_caught() ^ self._caught) - python
        if threading.current_thread() is threading.main_thread():  # Python lets no other one set handlers
            for number in python:
                if self._handlers.get(number) is not None:
                    signal.signal(number, self._handlers[number])
        words = [f"handler of {signal.Signals(number).name} changed" for number in sorted(python)]
        return words + [f"handler of {_name(number)} changed by native code" for number in sorted(native)]


class _List:
    """A list that Python looks through: it is the same one again, and holds what it held, in that order."""

    def __init__(self, module: ModuleType, name: str) -> None:
        self._module, self._name = module, name
        self._was: list[Any] = getattr(module, name)
        self._entries = list(self._was)

    def put_back(self) -> list[str]:
        now = getattr(self._module, self._name, None)
        found = list(now) if isinstance(now, (list, tuple)) else []
        if now is self._was and found == self._entries:
            return []
        added = [entry for entry in found if entry not in self._entries]
        # A finder that comes first is how a plugin's imports work; a folder or a filter serves behind the others, too.
        if self._name not in _FINDERS or [entry for entry in found if entry not in added] != self._entries:
            found = self._entries + added
        self._was[:] = found
        setattr(self._module, self._name, self._was)
        if self._module is warnings:
            getattr(warnings, "_filters_mutated", bool)()  # what it remembers of the filters is forgotten
        return [f"{self._module.__name__}.{self._name} changed"]


_UNKNOWN: Any = object()
"""How something began that was not there yet: what belongs to a module that nobody had imported."""


class _Facet(NamedTuple):
    """One thing that is the process's own. ``put_back`` takes what ``read`` returned; None: it stays, and is told."""

    what: str
    read: Callable[[], Any]
    put_back: Callable[[Any], object] | None
    by_identity: bool = False

    def value(self) -> Any:
        try:
            return self.read()
        except Exception:  # a platform that has the function, and not the thing
            return _UNKNOWN

    def put_back_changes(self, value: Any) -> list[str]:
        """Puts back ``value`` where it is another now; that in words. What cannot be put back is said, never raised."""
        if value is _UNKNOWN:
            return []
        try:
            now = self.read()
            if now is value if self.by_identity else now == value:
                return []
            if self.put_back is not None:
                self.put_back(value)
        except Exception as error:
            return [f"{self.what} changed, and could not be put back ({type(error).__name__})"]
        return [f"{self.what} changed"]


def _attribute(module: ModuleType, name: str) -> _Facet:
    def put_back(value: Any) -> None:
        setattr(module, name, value)

    return _Facet(f"{module.__name__}.{name}", lambda: getattr(module, name, None), put_back, by_identity=True)


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
    handlers, level, disabled = value
    logging.root.handlers = list(handlers)
    logging.root.setLevel(level)
    logging.disable(disabled)


_NUMPY_ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}


def _numpy_errors() -> Any:
    geterr = getattr(sys.modules.get("numpy"), "geterr", None)
    return _NUMPY_ERRORS if geterr is None else geterr()


def _put_back_numpy_errors(value: Any) -> None:
    sys.modules["numpy"].seterr(**value)


def _of(module: str, function: str) -> Callable[[], Any]:
    """Asks a function of a module that may not be imported."""
    return lambda: getattr(sys.modules.get(module), function, lambda: _UNKNOWN)()


def _put_back_numpy_printing(value: Any) -> None:
    sys.modules["numpy"].set_printoptions(**value)


def _numpy_random() -> Any:
    """State of the numbers that the functions of ``numpy.random`` draw, as values that can be compared."""
    state = _of("numpy.random", "get_state")()
    if state is _UNKNOWN:
        return state
    name, keys, *more = state
    return name, keys.tobytes(), *more


def _put_back_numpy_random(value: Any) -> None:
    numpy: Any = sys.modules["numpy"]
    name, keys, *more = value
    numpy.random.set_state((name, numpy.frombuffer(keys, numpy.uint32), *more))


def _put_back_random(value: Any) -> None:
    sys.modules["random"].setstate(value)


def _signal_mask() -> Any:
    return signal.pthread_sigmask(signal.SIG_BLOCK, ()) if hasattr(signal, "pthread_sigmask") else _UNKNOWN


def _put_back_signal_mask(value: Any) -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, value)


def _processors() -> Any:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else _UNKNOWN


def _limits() -> dict[int, tuple[int, int]]:
    try:
        import resource
    except ImportError:  # Windows
        return {}
    kinds = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return {kind: resource.getrlimit(kind) for kind in kinds}


def _open_flags() -> Any:
    return sys.getdlopenflags() if hasattr(sys, "getdlopenflags") else _UNKNOWN


def _put_back_open_flags(value: int) -> None:
    sys.setdlopenflags(value)


def _put_back_socket_timeout(value: Any) -> None:
    sys.modules["socket"].setdefaulttimeout(value)


def _threads() -> set[threading.Thread]:
    """Those that Python waits for at its end."""
    return {each for each in threading.enumerate() if not each.daemon}


def _put_back_gc(enabled: bool) -> None:
    gc.enable() if enabled else gc.disable()


_FINDERS = ("meta_path", "path_hooks")
_LISTS = ((sys, "path"), *((sys, name) for name in _FINDERS), (warnings, "filters"))

_FACETS = (
    _Facet("working directory", _folder, _put_back_folder),
    _Facet("timer", _timer, _put_back_timer),
    _Facet("umask", lambda: _status("Umask:", 8), _put_back_umask),
    *(_attribute(sys, name) for name in ("stdin", "stdout", "stderr", "excepthook", "unraisablehook", "displayhook")),
    _attribute(sys, "breakpointhook"),
    _attribute(sys, "dont_write_bytecode"),
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
    _Facet("NumPy's printing (np.set_printoptions)", _of("numpy", "get_printoptions"), _put_back_numpy_printing),
    _Facet("random numbers (random)", _of("random", "getstate"), _put_back_random),
    _Facet("random numbers (np.random)", _numpy_random, _put_back_numpy_random),
    _Facet("signal mask", _signal_mask, _put_back_signal_mask),
    _Facet("processors this thread may use", _processors, None),
    _Facet("resource limits", _limits, None),
    _Facet("flags of dlopen", _open_flags, _put_back_open_flags),
    _Facet("default timeout of sockets", _of("socket", "getdefaulttimeout"), _put_back_socket_timeout),
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
