"""``load_all``: creates one registry for each set of options."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from hotshoe_core.errors import PluginError
from hotshoe_loader.options import PROBE_VARIABLE, Options
from hotshoe_loader.rank import find_named
from hotshoe_loader.registry import Registry
from hotshoe_loader.servers import endpoint_of
from hotshoe_loader.survey import NOTHING, Survey, take_survey
from hotshoe_loader.wanted import names_in, plugins_for

__all__ = ["load_all"]

_lock = threading.RLock()
_registries: dict[Options, Registry] = {}
# A survey is shared by all options that differ in ranking only: another prefer= does not probe the plugins again. It is
# not complete if all callers so far have named a device.
_surveys: dict[tuple[Any, ...], Survey] = {}
_busy = False


def _after_fork() -> None:
    """In the forked child: make a new lock, because a thread of the parent may have held the old one."""
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
    device: str | Iterable[str] | None = None,
) -> Registry:
    """Find every installed compute backend, test each one, and rank their devices.

    Each plugin is tested in a child process, several of them in parallel. The results are kept in the user's cache
    folder (HOTSHOE_CACHE_DIR, or "off") until something changes. No plugin code runs in this process before a backend
    of the plugin is opened.

    A broken plugin is a verdict, not an error. Without any plugin only the reference backend is left, and the logger
    "hotshoe.loader" warns. A second call with the same options returns the same registry. Thread-safe.

    Each option has an environment variable. Names in the variable come after those in the argument.

    Args:
        prefer: devices, types, backends or providers to rank first if they exist ("cuda", "gpu", "ggml-cpu").
            HOTSHOE_PREFER, separated by commas.
        require: the same, but each must exist; it is never replaced by another device. HOTSHOE_REQUIRE.
        block: plugins, providers, native libraries, devices or types not to use. A blocked plugin is not imported, and
            a blocked library is not opened. HOTSHOE_BLOCK.
        allow: the only plugins to use, by entry point, distribution or short name ("cpu"), and the only libraries
            without a plugin. The reference backend is always allowed. HOTSHOE_ALLOW.
        paths: folders with ggml libraries ("libggml-cuda.so") to use in addition to the plugins' own, and before them
            if the scores are equal. HOTSHOE_PATH: absolute paths, separated as in PATH.
        system: also search the folders where Debian, Homebrew, Ollama and others install ggml's libraries.
            HOTSHOE_SYSTEM=1 if the argument is missing.
        ggml: a folder with a whole set of ggml libraries, including libggml-base, to use in place of the libraries of
            hotshoe's ggml plugins. Their bindings must be tested with its version, else the verdict is abi-mismatch.
            Takes effect with the first backend that is opened, because a process can use one ggml only. HOTSHOE_GGML.
        timeout: seconds that each plugin may take in its child process, and each of its devices. HOTSHOE_PROBE_TIMEOUT.
            Without it: 10, or what the plugin's manifest asks for, and 300 for a device that ``device`` names, because
            its first start may compile shaders.
        refresh: search and test again, without the cache, to see what was installed or changed.
        device: the devices that the caller will open, as for ``Registry.open``. If their names say which plugins offer
            them ("cpu", "cuda:0", "reference", the name of an entry point), only these plugins are tested, so the
            caller does not wait for the others, and HOTSHOE_REQUIRE is not checked. The registry has the other
            devices after the next call without ``device``.

    Raises:
        DeviceNotFoundError: a required device is missing; ``verdicts`` holds all verdicts.
        TypeError: an argument has the wrong type.
        OptionError: an argument or a variable has an invalid value.
    """
    options = Options.from_arguments(
        prefer, require, block, paths, os.environ, allow=allow, system=system, ggml=ggml, timeout=timeout
    )
    asked = [] if device is None else names_in(device)
    names = asked if require is None else []
    registry = None if refresh else _registries.get(options)
    if registry is None or not _suffices(registry.survey, names, options):
        registry = _registry(options, refresh, names)
    if not names:
        registry.check_required()
    return registry


def _registry(options: Options, refresh: bool, names: list[str]) -> Registry:
    """The registry for ``options``, with at least what the devices ``names`` need; everything without names."""
    with _lock:
        if refresh:
            _registries.clear()
            _surveys.clear()
        survey = _surveys.get(_survey_key(options), NOTHING)
        if not _suffices(survey, names, options):
            survey = _take_and_keep_survey(options, refresh, names, survey)
            if not survey.complete and not _suffices(survey, names, options):
                survey = _take_and_keep_survey(options, refresh, (), survey)
        registry = _registries.get(options)
        if registry is None:
            registry = _registries[options] = Registry(survey, options, _reload_survey)
        elif registry.survey is not survey:
            registry.extend(survey)
        return registry


def _suffices(survey: Survey, names: list[str], options: Options) -> bool:
    """Whether a survey answers what devices ``names`` mean: it is complete, or it has all of these.

    A survey that is not complete answers only names that are reserved for its plugins: any plugin may have a device of
    another name, of a type ("gpu") or of a family. A complete survey does not answer if it gave up on a named device
    early: its test may take longer now, because the caller waits for it.
    """
    if not names:
        return survey.complete
    plugins = [provider.plugin for provider in survey.providers.values() if provider.plugin]
    # The plugin for servers is asked for the devices of a server when they are selected.
    found = all(endpoint_of(name) is not None or find_named(name, survey.devices) for name in names)
    if survey.complete:
        return found or options.timeout is not None or not survey.gave_up_on(names)
    return plugins_for(names, plugins) is not None and found


def _reload_survey(
    registry: Registry, options: Options, names: Sequence[str] = (), earlier: Survey = NOTHING
) -> Survey:
    """Take a new survey for a registry. From then on, ``load_all`` returns ``registry`` for these options."""
    with _lock:
        survey = _take_and_keep_survey(options, False, names, earlier)
        for known in list(_registries):
            if _survey_key(known) == _survey_key(options):
                del _registries[known]
        _registries[options] = registry
        return survey


def _survey_key(options: Options) -> tuple[Any, ...]:
    return options.block, options.allow, options.paths, options.relative, options.system, options.timeout, options.ggml


def _take_and_keep_survey(options: Options, refresh: bool, names: Sequence[str], earlier: Survey) -> Survey:
    """Take a survey (see ``take_survey``) and keep it in ``_surveys``. The caller holds the lock.

    Raises PluginError if a plugin calls load_all while it is loaded.
    """
    global _busy
    if _busy or PROBE_VARIABLE in os.environ:
        raise PluginError(
            "load_all() was called by a plugin that load_all() is loading",
            hint="a plugin must not call load_all() while it is imported",
        )
    importlib.invalidate_caches()  # to see plugins installed after this process started
    _busy = True
    try:
        survey = _surveys[_survey_key(options)] = take_survey(options, refresh, names, earlier)
    finally:
        _busy = False
    return survey
