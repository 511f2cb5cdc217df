"""Imports a plugin that passed its probe into this process, when the first backend of it is opened.

What the plugin changes in the process is put back (see process_changes). What it prints through Python on this thread
goes to the logger "hotshoe.plugin". Output of native code is not redirected: that would need descriptors 1 and 2, which
other threads use too.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hotshoe_core.contract.device import BackendParams, Device, Provider
from hotshoe_core.errors import BackendError, HotshoeError, PluginError
from hotshoe_core.errors.text import printable
from hotshoe_loader.contract_checks import backend_problem
from hotshoe_loader.files import file_state
from hotshoe_loader.find import EntryPoint
from hotshoe_loader.verdict import Outcome, Rejected

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import Backend

__all__ = ["UsableProvider", "backends_over", "changes_by", "imported_version", "open_backend", "prints_to_log"]

logger = logging.getLogger("hotshoe.loader")
_printed = logging.getLogger("hotshoe.plugin")


@dataclass(frozen=True, slots=True)
class UsableProvider:
    """A provider that passed every stage, and what opening it needs."""

    name: str
    devices: tuple[Device, ...]
    plugin: EntryPoint | None = None
    """None for the reference backend."""
    library: Path | None = None
    """The native library to use; None for a provider without libraries."""
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The native files that it loads, with their state when they were tested (see ``file_state``)."""
    ggml: str = ""
    """The folder of the adopted set of ggml libraries, or ""."""
    driven_backend: str = ""
    """The backend whose libraries have no plugin of their own; "" if the libraries are the plugin's."""
    forget: Callable[[], None] = lambda: None
    """Remove the kept report of its probe."""


@dataclass(slots=True)
class _Imported:
    """A plugin that was imported into this process."""

    version: str
    module: object
    providers: dict[str, Provider]
    ggml: str


_lock = threading.RLock()
_imported: dict[tuple[str, str], _Imported] = {}  # by the entry point's value and its folder on sys.path
_changes: dict[tuple[str, str], list[str]] = {}
_native: set[str] = set()  # native files that are loaded in this process
_manager: Any = None  # pluggy's manager, created for the first plugin, because importing pluggy takes 20 ms
_backends: weakref.WeakSet[Backend] = weakref.WeakSet()
_streams = threading.RLock()


def _after_fork() -> None:
    """In the forked child: make new locks, because a thread of the parent may have held the old ones."""
    global _lock, _streams
    _lock, _streams = threading.RLock(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def open_backend(providers: Sequence[UsableProvider], devices: list[Device], params: BackendParams) -> Backend:
    """Open a backend over ``devices``. The first provider opens it; ``providers`` are those of all the devices.

    Raises Rejected if a plugin passed its probe and fails here, and BackendError or another HotshoeError if a device
    cannot be opened.
    """
    with _lock:
        for provider in providers:
            _require_unchanged(provider)
        backend = _open(providers[0], devices, params)
        for provider in providers:
            _native.update(provider.files)
        _backends.add(backend)
        return backend


def _require_unchanged(usable: UsableProvider) -> None:
    """Raise Rejected if a native file was changed after its test. A file that is already loaded is not checked."""
    for path, state in usable.files.items():
        if path not in _native and file_state(path) != tuple(state):
            raise Rejected(
                Outcome.UNTRUSTED,
                f"{path} is not the file that was tested: it was changed or removed since then",
                "load_all(refresh=True) tests it again",
            )


def _open(usable: UsableProvider, devices: list[Device], params: BackendParams) -> Backend:
    if usable.plugin is None:
        from hotshoe_core.eager.reference import open_reference

        return open_reference(params)
    import hotshoe_core.contract.backend  # noqa: F401 - NumPy changes warnings.filters; import it before the snapshot
    from hotshoe_loader.process_changes import ProcessChanges

    process = ProcessChanges()
    try:
        with prints_to_log():
            provider = _provider(usable, usable.plugin)
            return _call_open(provider, _current_devices(provider, usable, usable.plugin, devices), params)
    finally:
        changes = process.put_back()
        known = _changes.setdefault(_key(usable.plugin), [])
        fresh = [change for change in changes if change not in known]
        known += fresh
        if fresh:
            # Without its own code as it was, every other backend would compute something else.
            level = logging.WARNING if any(change in process.core_changes for change in fresh) else logging.INFO
            text = "plugin %s changed this process, and it was put back as far as possible: %s"
            logger.log(level, text, usable.plugin.name, "; ".join(fresh))


def _call_open(provider: Provider, devices: list[Device], params: BackendParams) -> Backend:
    try:
        backend = provider.open(devices, params)
    except KeyboardInterrupt:  # from the user
        raise
    except BaseException as error:  # a plugin may not end the program
        if isinstance(error, HotshoeError) and _make_printable(error):
            raise
        names = ", ".join(device.name for device in devices)
        raise BackendError(
            f"provider {provider.name!r} could not open {names}: {printable(type(error).__name__)}: {_message(error)}",
            hint="load_all(refresh=True) tests every device again",
        ) from error
    problem = backend_problem(backend)
    if problem is not None:
        raise PluginError(
            f"open() of provider {provider.name!r} {problem}",
            hint=f"report it to the authors of provider {provider.name!r}",
        )
    return backend


def _make_printable(error: HotshoeError) -> bool:
    """Make an error's text printable in place. Return False if its text cannot be read or replaced."""
    try:
        error.message = "\n".join(printable(line, 2000) for line in str(error.message).split("\n"))
        error.hint = None if error.hint is None else printable(str(error.hint), 2000)
        return str(error).replace("\n", "").isprintable()
    except (Exception, SystemExit):
        return False


def _message(error: BaseException) -> str:
    try:
        return printable(" ".join(str(error).split()), 2000)
    except (Exception, SystemExit):
        return "(its message cannot be shown)"


def _key(plugin: EntryPoint) -> tuple[str, str]:
    return plugin.value, plugin.location


def _provider(usable: UsableProvider, plugin: EntryPoint) -> Provider:
    imported = _import(plugin, usable.ggml)
    if usable.driven_backend and usable.name not in imported.providers:
        from hotshoe_loader import plugin_calls

        more = plugin_calls.ask_driver(_manager, plugin, imported.module, usable.driven_backend)
        imported.providers |= _ready_providers(more, plugin)
    if usable.name not in imported.providers:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"in this process it has no provider {usable.name!r}, which it had in its test; "
            f"it has {', '.join(imported.providers) or 'none'}",
            f"report it to the authors of {plugin.distribution}",
        )
    return imported.providers[usable.name]


def _import(plugin: EntryPoint, ggml: str) -> _Imported:
    """Import the plugin at the first call. Raise Rejected if that fails or if it already uses another ggml."""
    key = _key(plugin)
    if key in _imported:
        _refuse_other_ggml(_imported[key], ggml)
        return _imported[key]
    from hotshoe_loader import plugin_calls

    global _manager
    module = plugin_calls.import_plugin(plugin)
    if _manager is None:
        _manager = plugin_calls.new_manager()
    adopted = Path(ggml) if ggml and plugin_calls.can_adopt(module) else None
    providers = _ready_providers(plugin_calls.ask_providers(_manager, plugin, module, adopted), plugin)
    _imported[key] = _Imported(plugin.version, module, providers, str(adopted or ""))
    return _imported[key]


def _ready_providers(providers: list[Any], plugin: EntryPoint) -> dict[str, Provider]:
    """The valid providers of a plugin, by name. Loads the ``libggml-base`` that each one needs."""
    from hotshoe_loader import plugin_calls

    ready: dict[str, Provider] = {}
    for provider in providers:
        with contextlib.suppress(Rejected):  # the probe rejected it too
            plugin_calls.guarded(partial(_prepare, provider, plugin), "reading its name", plugin, Outcome.CRASHED)
            ready[provider.name] = provider
    return ready


def _prepare(provider: Any, plugin: EntryPoint) -> None:
    """Check a provider, and load the ``libggml-base`` that its libraries need. Raise Rejected if that fails."""
    from hotshoe_loader import plugin_calls
    from hotshoe_loader.policy import Policy
    from hotshoe_loader.vet_files import vet_provider

    vet_provider(provider, plugin, Policy())
    native = plugin_calls.native_libraries(provider, plugin)
    if native is not None:
        from hotshoe_loader.ggml.native_result import ggml_libraries
        from hotshoe_loader.ggml.score import open_core

        open_core(ggml_libraries(native[1], plugin), plugin)


def _refuse_other_ggml(imported: _Imported, ggml: str) -> None:
    if imported.ggml != ggml:
        used = f"the ggml in {imported.ggml}" if imported.ggml else "the plugin's ggml"
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"this process already uses {used}, and a process can use only one; "
            f"got {f'the ggml in {ggml}' if ggml else 'the ggml of the plugin'}",
            "call load_all(ggml=...) before a backend is opened, or in another process",
        )


def _current_devices(
    provider: Provider, usable: UsableProvider, plugin: EntryPoint, devices: list[Device]
) -> list[Device]:
    """The devices as the provider lists them now: a kept report may be outdated, also about free memory."""
    from hotshoe_loader import plugin_calls

    listed = {device.name: device for device in plugin_calls.list_devices(provider, usable.library, plugin)}
    current = []
    for device in devices:
        if device.provider == provider.name and device.name not in listed:
            usable.forget()
            raise BackendError(
                f"device {device.name!r} existed when {provider.name!r} was tested, but is missing now; "
                f"found: {', '.join(listed)}",
                hint="load_all(refresh=True) searches again",
            )
        current.append(listed[device.name] if device.provider == provider.name else device)
    return current


# -- what is imported into this process ------------------------------------------------------------------------------


def imported_version(plugin: EntryPoint) -> str | None:
    """The version of the plugin that was imported into this process; None if it was not imported."""
    imported = _imported.get(_key(plugin))
    return None if imported is None else imported.version


def changes_by(plugin: EntryPoint) -> list[str]:
    """What the plugin changed in this process when it was imported and opened."""
    return list(_changes.get(_key(plugin), ()))


def backends_over(provider: str) -> list[Backend]:
    """The open backends of this process over devices of ``provider``."""
    return [
        backend
        for backend in list(_backends)
        if not backend.closed
        and not backend.is_forked_copy
        and any(device.provider == provider for device in backend.devices)
    ]


# -- what it prints -----------------------------------------------------------------------------------------


class _ToLog(io.TextIOBase):
    """A stream that logs what one thread writes, and passes the output of other threads through."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._owner = threading.get_ident()
        self._line = ""

    def write(self, text: str) -> int:
        if threading.get_ident() != self._owner:
            return self._stream.write(text) if self._stream else len(text)
        *lines, self._line = (self._line + text).split("\n")
        for line in filter(None, map(str.rstrip, lines)):
            _printed.info("%s", printable(line, 2000))
        return len(text)

    def flush(self) -> None:
        if self._stream and threading.get_ident() != self._owner:
            self._stream.flush()

    def finish(self) -> None:
        self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def prints_to_log() -> Iterator[None]:
    """Send what this thread prints through Python to the logger "hotshoe.plugin". What it logs is not affected.

    Only one thread at a time: the streams belong to the process, and two threads could not both put them back.
    """
    with _streams:
        before = sys.stdout, sys.stderr
        ours = _ToLog(before[0]), _ToLog(before[1])
        last = logging.lastResort
        # Without a logging configuration, Python shows warnings through lastResort, which writes to the current
        # sys.stderr. The next lines replace that stream, so warnings would become INFO messages that nobody sees.
        direct = last
        if last is not None and before[1] is not None and getattr(last, "stream", None) is before[1]:
            direct = logging.StreamHandler(before[1])
            direct.setLevel(last.level)
        logging.lastResort = direct
        sys.stdout, sys.stderr = ours
        try:
            yield
        finally:
            # If the plugin replaced a stream or the handler, process_changes puts it back.
            if logging.lastResort is direct:
                logging.lastResort = last
            if sys.stdout is ours[0]:
                sys.stdout = before[0]
            if sys.stderr is ours[1]:
                sys.stderr = before[1]
            for stream in ours:
                stream.finish()
