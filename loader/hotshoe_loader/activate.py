"""Brings a plugin that passed its probe into this process: when a backend of it is opened, and once.

What it does may change what belongs to the user: see process_changes. What it prints in Python goes to the logger
"hotshoe.plugin"; that of other threads passes. What native code prints by itself is not caught: redirecting
descriptors 1 and 2 would catch other threads' output too.
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
from hotshoe_loader.contract import backend_problem
from hotshoe_loader.files import file_state
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.verdict import Outcome, Rejected

if TYPE_CHECKING:
    from hotshoe_core.contract.backend import Backend

__all__ = ["Offer", "changes_by", "imported_version", "open_backend", "backends_over", "prints_to_log"]

logger = logging.getLogger("hotshoe.loader")
_printed = logging.getLogger("hotshoe.plugin")


@dataclass(frozen=True, slots=True)
class Offer:
    """A provider that can be had. ``plugin`` is None for the reference.

    files: the native files that come into this process with it, as they were when they were tested (see file_state).
    ggml: the folder of an adopted set, or "". drives: the backend whose libraries no plugin brings, where this is one.
    forget: removes the kept probe.
    """

    name: str
    plugin: PluginCandidate | None = None
    library: Path | None = None
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    ggml: str = ""
    drives: str = ""
    forget: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Imported:
    """A plugin that was imported here."""

    version: str
    module: object
    providers: dict[str, Provider]
    ggml: str


_lock = threading.RLock()
_imported: dict[tuple[str, str], _Imported] = {}  # by the entry point's value and its place on sys.path
_changes: dict[tuple[str, str], list[str]] = {}
_native: set[str] = set()  # native files that are in this process by now
_manager: Any = None  # pluggy's; made for the first plugin, as importing it costs 20 ms
_backends: weakref.WeakSet[Backend] = weakref.WeakSet()
_streams = threading.RLock()


def _after_fork() -> None:
    """In the child: a thread of the parent may have held a lock."""
    global _lock, _streams
    _lock, _streams = threading.RLock(), threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def open_backend(offers: Sequence[Offer], devices: list[Device], params: BackendParams) -> Backend:
    """A backend over ``devices``, opened by the first of ``offers``, which are their providers.

    Raises Rejected for a plugin that passed its probe and fails here, BackendError or another HotshoeError for a
    device that cannot be opened.
    """
    with _lock:
        for offer in offers:
            _require_unchanged(offer)
        backend = _open(offers[0], devices, params)
        for offer in offers:
            _native.update(offer.files)
        _backends.add(backend)
        return backend


def _require_unchanged(offer: Offer) -> None:
    """Raises Rejected if a native file is another than the one that was tested. One that is open already stays so."""
    for path, state in offer.files.items():
        if path not in _native and file_state(path) != tuple(state):
            raise Rejected(
                Outcome.UNTRUSTED,
                f"{path} is not the file that was tested: it was changed or removed since",
                "load_all(refresh=True) tests it anew",
            )


def _open(offer: Offer, devices: list[Device], params: BackendParams) -> Backend:
    if offer.plugin is None:
        from hotshoe_core.eager.reference import open_reference

        return open_reference(params)
    import hotshoe_core.contract.backend  # noqa: F401 - NumPy changes warnings.filters, and that is none of the plugin's doing
    from hotshoe_loader.process_changes import ProcessChanges

    process = ProcessChanges()
    try:
        with prints_to_log():
            provider = _provider(offer, offer.plugin)
            return _opened(provider, _as_now(provider, offer, offer.plugin, devices), params)
    finally:
        changes = process.put_back()
        known = _changes.setdefault(_key(offer.plugin), [])
        fresh = [change for change in changes if change not in known]
        known += fresh
        if fresh:
            logger.info("plugin %s changed this process: %s", offer.plugin.name, "; ".join(fresh))


def _opened(provider: Provider, devices: list[Device], params: BackendParams) -> Backend:
    try:
        backend = provider.open(devices, params)
    except KeyboardInterrupt:  # the user's
        raise
    except BaseException as error:  # a plugin may not end the program
        if isinstance(error, HotshoeError) and _made_printable(error):
            raise
        names = ", ".join(device.name for device in devices)
        raise BackendError(
            f"provider {provider.name!r} could not open {names}: {printable(type(error).__name__)}: {_message(error)}",
            hint="load_all(refresh=True) tests every device anew",
        ) from error
    problem = backend_problem(backend)
    if problem is not None:
        raise PluginError(
            f"open() of provider {provider.name!r} {problem}",
            hint=f"report it to the authors of provider {provider.name!r}",
        )
    return backend


def _made_printable(error: HotshoeError) -> bool:
    """Makes an error's words printable in place. False for one that has none, or guards them."""
    try:
        error.message = "\n".join(printable(line, 2000) for line in str(error.message).split("\n"))
        error.hint = None if error.hint is None else printable(str(error.hint), 2000)
        return str(error).replace("\n", "").isprintable()
    except Exception:
        return False


def _message(error: BaseException) -> str:
    try:
        return printable(" ".join(str(error).split()), 2000)
    except Exception:
        return "(its message cannot be shown)"


def _key(plugin: PluginCandidate) -> tuple[str, str]:
    return plugin.value, plugin.location


def _provider(offer: Offer, plugin: PluginCandidate) -> Provider:
    imported = _import(plugin, offer.ggml)
    if offer.drives and offer.name not in imported.providers:
        from hotshoe_loader import probe

        imported.providers |= _usable(probe.ask_driver(_manager, plugin, imported.module, offer.drives), plugin)
    if offer.name not in imported.providers:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"imported here it has no provider {offer.name!r}, which it had when it was tested; "
            f"it has {', '.join(imported.providers) or 'none'}",
            f"report it to the authors of {plugin.distribution}",
        )
    return imported.providers[offer.name]


def _import(plugin: PluginCandidate, ggml: str) -> _Imported:
    """The plugin's providers; imports it at the first call. Raises Rejected."""
    key = _key(plugin)
    if key in _imported:
        _refuse_other_core(_imported[key], ggml)
        return _imported[key]
    from hotshoe_loader import probe

    global _manager
    module = probe.import_plugin(plugin)
    if _manager is None:
        _manager = probe.new_manager()
    adopted = Path(ggml) if ggml and probe.adopts(module) else None
    providers = _usable(probe.ask_providers(_manager, plugin, module, adopted), plugin)
    _imported[key] = _Imported(plugin.version, module, providers, str(adopted or ""))
    return _imported[key]


def _usable(providers: list[Any], plugin: PluginCandidate) -> dict[str, Provider]:
    from hotshoe_loader import probe

    usable: dict[str, Provider] = {}
    for provider in providers:
        with contextlib.suppress(Rejected):  # its probe said so too
            probe.guarded(partial(_ready, provider, plugin), "reading its name", plugin, Outcome.CRASHED)
            usable[provider.name] = provider
    return usable


def _ready(provider: Any, plugin: PluginCandidate) -> None:
    """Checks a provider, and opens what its libraries need. Raises Rejected."""
    from hotshoe_loader import probe
    from hotshoe_loader.vet import Policy
    from hotshoe_loader.vet_files import vet_provider

    vet_provider(provider, plugin, Policy())
    native = probe.native_libraries(provider, plugin)
    if native is not None:
        from hotshoe_loader.ggml.libraries import ggml_libraries
        from hotshoe_loader.ggml.score import open_core

        open_core(ggml_libraries(native[1], plugin), plugin)


def _refuse_other_core(imported: _Imported, ggml: str) -> None:
    if imported.ggml != ggml:
        here = f"the ggml in {imported.ggml}" if imported.ggml else "the ggml of the plugin"
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"this process uses {here} already, and there can be only one; "
            f"{f'the one in {ggml}' if ggml else 'that of the plugin'} was asked for",
            "call load_all(ggml=...) before any backend is opened, or in a process of its own",
        )


def _as_now(provider: Provider, offer: Offer, plugin: PluginCandidate, devices: list[Device]) -> list[Device]:
    """The devices as the provider lists them now: a kept probe knows neither their memory nor if they are there."""
    from hotshoe_loader import probe

    listed = {each.name: each for each in probe.list_devices(provider, offer.library, plugin)}
    now = []
    for device in devices:
        if device.provider == provider.name and device.name not in listed:
            offer.forget()
            raise BackendError(
                f"device {device.name!r} was there when {provider.name!r} was tested, and is not any more; "
                f"there is {', '.join(listed)}",
                hint="load_all(refresh=True) looks again",
            )
        now.append(listed[device.name] if device.provider == provider.name else device)
    return now


# -- what is in this process ------------------------------------------------------------------------------


def imported_version(plugin: PluginCandidate) -> str | None:
    """The version of the plugin that was imported here; None if none was."""
    imported = _imported.get(_key(plugin))
    return None if imported is None else imported.version


def changes_by(plugin: PluginCandidate) -> list[str]:
    """What the plugin changed in this process when it was imported and opened."""
    return list(_changes.get(_key(plugin), ()))


def backends_over(provider: str) -> list[Backend]:
    """Backends that are open in this process over devices of ``provider``."""
    return [
        backend
        for backend in list(_backends)
        if not backend.closed and not backend.foreign and any(device.provider == provider for device in backend.devices)
    ]


# -- what it prints -----------------------------------------------------------------------------------------


class _ToLog(io.TextIOBase):
    """A stream that logs what one thread writes, and hands on what the others do."""

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
    """What this thread prints through Python goes to the logger meanwhile. What it logs goes where it always does.

    One thread at a time: the streams are the process's, and two that changed them in turn could not put them back.
    """
    with _streams:
        before = sys.stdout, sys.stderr
        ours = _ToLog(before[0]), _ToLog(before[1])
        last = logging.lastResort
        # Python shows warnings through it where nobody has set up logging. It writes to whatever sys.stderr is at that
        # moment, which is about to be ours: warnings would end as notes of what was printed, which nobody sees.
        direct = last
        if last is not None and before[1] is not None and getattr(last, "stream", None) is before[1]:
            direct = logging.StreamHandler(before[1])
            direct.setLevel(last.level)
        logging.lastResort = direct
        sys.stdout, sys.stderr = ours
        try:
            yield
        finally:
            # Streams and handlers that somebody has put in their place meanwhile are process_changes' to judge.
            if logging.lastResort is direct:
                logging.lastResort = last
            if sys.stdout is ours[0]:
                sys.stdout = before[0]
            if sys.stderr is ours[1]:
                sys.stderr = before[1]
            for stream in ours:
                stream.finish()
