"""``load_all``: one registry for each set of options, made once."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterable
from typing import Any

from hotshoe_core.errors import PluginError
from hotshoe_loader.options import PROBE_VARIABLE, Options
from hotshoe_loader.registry import Registry
from hotshoe_loader.survey import Survey, take_survey

__all__ = ["load_all"]

_lock = threading.RLock()
_registries: dict[Options, Registry] = {}
# Options that only rank share a survey: a plugin is not asked twice because prefer= changed.
_surveys: dict[tuple[Any, ...], Survey] = {}
_busy = False


def _after_fork() -> None:
    """In the child: a thread of the parent may have been at work."""
    global _lock, _busy
    _lock, _busy = threading.RLock(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def load_all(
    *,
    prefer: str | Iterable[str] | None = None,
    require: str | Iterable[str] | None = None,
    block: str | Iterable[str] = (),
    allow: str | Iterable[str] = (),
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    system: bool | None = None,
    ggml: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    refresh: bool = False,
) -> Registry:
    """Finds every compute backend that is installed, judges each, and ranks their devices.

    Each plugin is tried in a child process first, all of them side by side, and what was found out is kept in the
    user's cache folder (HOTSHOE_CACHE_DIR, or "off") until something changes. No plugin's code runs in this
    process before a backend of it is opened.

    A broken plugin is a verdict, not an error. With no plugin at all the reference backend remains, and a
    warning on the logger "hotshoe.loader" says so. A second call with the same options returns the same
    registry. May be called from several threads.

    The names in each option are joined by those in its environment variable, which come after the argument's.

    Args:
        prefer: devices, types, backends or providers to rank first, where they exist ("cuda", "gpu",
            "ggml-cpu"). HOTSHOE_PREFER, separated by commas.
        require: the same, and each must exist: nothing stands in for it. HOTSHOE_REQUIRE.
        block: plugins, providers, native libraries, devices or types not to use. A blocked plugin is not
            imported, a blocked library not opened. HOTSHOE_BLOCK.
        allow: the only plugins to use, by entry point, distribution or short name ("cpu"); of libraries in ``paths``
            that no plugin brings, their names. The reference backend needs no permission. HOTSHOE_ALLOW.
        paths: folders with ggml libraries ("libggml-cuda.so") to use besides those of the plugins, and
            before them where the scores are equal. HOTSHOE_PATH, separated as PATH is; absolute ones only.
        system: search the places where Debian, Homebrew, Ollama and others keep ggml's libraries, too.
            HOTSHOE_SYSTEM=1 where it is not given.
        ggml: a folder that holds a whole set of ggml libraries, libggml-base too, to use in place of those of
            hotshoe's ggml plugins, where their bindings were tested with its version; abi-mismatch otherwise. Counts
            from the first backend that is opened, as there can be one ggml in a process. HOTSHOE_GGML.
        timeout: seconds each plugin may take in its child process; 10 if not given. HOTSHOE_PROBE_TIMEOUT.
        refresh: search and try again, for what was installed or changed since; the cache is not read.

    Raises:
        DeviceNotFoundError: a required device is not there; carries the verdicts.
        TypeError, OptionError: an option, or its variable, is not what it should be.
    """
    options = Options.of(
        prefer, require, block, paths, os.environ, allow=allow, system=system, ggml=ggml, timeout=timeout
    )
    registry = None if refresh else _registries.get(options)
    if registry is not None:
        return registry
    with _lock:
        if refresh:
            _registries.clear()
            _surveys.clear()
        elif options in _registries:  # another thread was first
            return _registries[options]
        survey = _surveys.get(_key(options)) or _survey(options, refresh)
        registry = _registries[options] = Registry(survey, options, _look_again)
        return registry


def _look_again(registry: Registry, options: Options) -> Survey:
    """A fresh survey for ``registry``, which ``load_all`` then returns for these options. What Registry.reload asks."""
    with _lock:
        survey = _survey(options, False)
        for other in [each for each in _registries if _key(each) == _key(options)]:
            del _registries[other]
        _registries[options] = registry
        return survey


def _key(options: Options) -> tuple[Any, ...]:
    return options.block, options.allow, options.paths, options.relative, options.system, options.timeout, options.ggml


def _survey(options: Options, refresh: bool) -> Survey:
    """Takes a survey and keeps it; under the lock. Raises PluginError if a plugin is what asks for it."""
    global _busy
    if _busy or PROBE_VARIABLE in os.environ:
        raise PluginError(
            "load_all() was called by a plugin that load_all() is just loading",
            hint="a plugin offers providers; it must not look for others while it is imported",
        )
    importlib.invalidate_caches()  # what was installed since this process started
    _busy = True
    try:
        survey = _surveys[_key(options)] = take_survey(options, refresh)
    finally:
        _busy = False
    return survey
