"""Brings a plugin that passed its probe into this process: when a backend of it is opened, and once.

Its import may change what belongs to the user: see traces. What it prints in Python goes to the logger
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from hotshoe_core.device import BackendParams, Device, Provider
from hotshoe_core.errors import BackendError, HotshoeError, PluginError
from hotshoe_loader.find import PluginCandidate
from hotshoe_loader.verdict import Outcome, Rejected

if TYPE_CHECKING:
    from hotshoe_core.backend import Backend

__all__ = ["Offer", "live_backends", "live_changes", "live_version", "open_backend", "quiet"]

logger = logging.getLogger("hotshoe.loader")
_printed = logging.getLogger("hotshoe.plugin")


@dataclass(frozen=True, slots=True)
class Offer:
    """A provider that can be had. ``plugin`` is None for the reference. ``forget``: removes the cached probe."""

    name: str
    plugin: PluginCandidate | None = None
    library: Path | None = None
    ggml: str = ""
    forget: Callable[[], None] = lambda: None


@dataclass(slots=True)
class _Live:
    """A plugin that was imported here."""

    version: str
    providers: dict[str, Provider]
    changes: list[str]
    ggml: str


_lock = threading.RLock()
_live: dict[tuple[str, str], _Live] = {}  # by the entry point's value and its place on sys.path
_manager: Any = None  # pluggy's; made for the first plugin, as importing it costs 20 ms
_backends: weakref.WeakSet[Backend] = weakref.WeakSet()


def _after_fork() -> None:
    """In the child: a thread of the parent may have held the lock."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def open_backend(offer: Offer, devices: list[Device], params: BackendParams) -> Backend:
    """A backend over ``devices`` of one provider (the first one's, where there are several).

    Raises Rejected for a plugin that passed its probe and fails here, BackendError or another HotshoeError for a
    device that cannot be opened.
    """
    from hotshoe_core.backend import Backend

    with _lock:
        provider = _provider(offer)
        devices = _as_now(provider, offer, devices)
        try:
            with quiet():
                backend = provider.open(devices, params)
        except HotshoeError:
            raise
        except Exception as error:
            names = ", ".join(device.name for device in devices)
            raise BackendError(
                f"provider {provider.name!r} could not open {names}: {type(error).__name__}: {error}",
                hint="load_all(refresh=True) tests every device anew",
            ) from error
        if not isinstance(backend, Backend):
            raise PluginError(
                f"provider {provider.name!r} opened {type(backend).__name__}; expected a hotshoe_core Backend",
                hint=f"report it to the authors of provider {provider.name!r}",
            )
        _backends.add(backend)
        return backend


def _provider(offer: Offer) -> Provider:
    if offer.plugin is None:
        from hotshoe_core.reference import ReferenceProvider

        return ReferenceProvider()
    live = _import(offer.plugin, offer.ggml)
    if offer.name not in live.providers:
        raise Rejected(
            Outcome.INCOMPATIBLE_API,
            f"imported here it has no provider {offer.name!r}, which it had when it was tested; "
            f"it has {', '.join(live.providers) or 'none'}",
            f"report it to the authors of {offer.plugin.distribution}",
        )
    return live.providers[offer.name]


def _import(plugin: PluginCandidate, ggml: str) -> _Live:
    """The plugin's providers; imports it at the first call. Raises Rejected."""
    key = (plugin.value, plugin.location)
    if key in _live:
        _refuse_other_core(_live[key], ggml)
        return _live[key]
    from hotshoe_loader import probe
    from hotshoe_loader.traces import Traces
    from hotshoe_loader.vet import Policy
    from hotshoe_loader.vet_files import vet_provider

    global _manager
    traces = Traces()
    try:
        with quiet():
            module = probe.import_plugin(plugin)
            if _manager is None:
                _manager = probe.new_manager()
            providers: dict[str, Provider] = {}
            adopted = Path(ggml) if ggml and probe.adopts(module) else None
            for provider in probe.ask_providers(_manager, plugin, module, adopted):
                with contextlib.suppress(Rejected):  # its probe said so too
                    vet_provider(provider, plugin, Policy())
                    native = probe.native_libraries(provider, plugin)
                    if native is not None:
                        probe.open_core(native, plugin)
                    providers[provider.name] = provider
    finally:
        changes = traces.changes()
        traces.undo()
    if changes:
        logger.info("plugin %s changed this process: %s", plugin.name, "; ".join(changes))
    _live[key] = _Live(plugin.version, providers, changes, str(adopted or ""))
    return _live[key]


def _refuse_other_core(live: _Live, ggml: str) -> None:
    if live.ggml != ggml:
        raise Rejected(
            Outcome.ABI_MISMATCH,
            f"this process uses {f'the ggml in {live.ggml}' if live.ggml else 'the ggml of the plugin'} already, and "
            f"there can be only one; {f'the one in {ggml}' if ggml else 'that of the plugin'} was asked for",
            "call load_all(ggml=...) before any backend is opened, or in a process of its own",
        )


def _as_now(provider: Provider, offer: Offer, devices: list[Device]) -> list[Device]:
    """The devices as the provider lists them now: a kept probe knows neither their memory nor if they are there."""
    if offer.plugin is None:
        return devices
    from hotshoe_loader import probe

    with quiet():
        listed = {each.name: each for each in probe.list_devices(provider, offer.library, offer.plugin)}
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


def live_version(plugin: PluginCandidate) -> str | None:
    """The version of the plugin that was imported here; None if none was."""
    live = _live.get((plugin.value, plugin.location))
    return None if live is None else live.version


def live_changes(plugin: PluginCandidate) -> list[str]:
    """What importing the plugin changed in this process."""
    live = _live.get((plugin.value, plugin.location))
    return [] if live is None else live.changes


def live_backends(provider: str) -> list[Backend]:
    """Backends that are open in this process over devices of ``provider``."""
    return [
        backend
        for backend in list(_backends)
        if not backend.closed and not backend.foreign and any(device.provider == provider for device in backend.devices)
    ]


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
            _printed.info("%s", line)
        return len(text)

    def flush(self) -> None:
        if self._stream and threading.get_ident() != self._owner:
            self._stream.flush()

    def finish(self) -> None:
        self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What this thread prints through Python goes to the logger meanwhile."""
    before = sys.stdout, sys.stderr
    ours = _ToLog(before[0]), _ToLog(before[1])
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        # Whoever has put a stream of his own in its place meanwhile keeps it.
        if sys.stdout is ours[0]:
            sys.stdout = before[0]
        if sys.stderr is ours[1]:
            sys.stderr = before[1]
        for stream in ours:
            stream.finish()
