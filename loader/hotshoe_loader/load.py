"""``load_all``: one registry for each set of options, made once."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from hotshoe_core.errors import PluginError
from hotshoe_loader.options import Options
from hotshoe_loader.registry import Registry
from hotshoe_loader.survey import Survey, take_survey

__all__ = ["load_all"]

_lock = threading.RLock()
_registries: dict[Options, Registry] = {}
# Options that only rank share a survey: a plugin is not asked twice because prefer= changed.
_surveys: dict[tuple[tuple[str, ...], tuple[Path, ...], tuple[str, ...]], Survey] = {}
_busy = False


def load_all(
    *,
    prefer: str | Iterable[str] | None = None,
    require: str | Iterable[str] | None = None,
    block: str | Iterable[str] = (),
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    refresh: bool = False,
) -> Registry:
    """Finds every compute backend that is installed, judges each, and ranks their devices.

    A broken plugin is a verdict, not an error. With no plugin at all the reference backend remains, and a
    warning on the logger "hotshoe.loader" says so. A second call with the same options returns the same
    registry. May be called from several threads.

    Each option is joined by an environment variable, whose names come after the argument's.

    Args:
        prefer: devices, types, backends or providers to rank first, where they exist ("cuda", "gpu",
            "ggml-cpu"). HOTSHOE_PREFER, separated by commas.
        require: the same, and each must exist: nothing stands in for it. HOTSHOE_REQUIRE.
        block: plugins, providers, native libraries, devices or types not to use. A blocked plugin is not
            imported, a blocked library not opened. HOTSHOE_BLOCK.
        paths: folders with ggml libraries ("libggml-cuda.so") to use besides those of the plugins, and
            before them where the scores are equal. HOTSHOE_PATH, separated as PATH is; absolute ones only.
        refresh: search again, for what was installed or changed since.

    Raises:
        DeviceNotFoundError: a required device is not there; carries the verdicts.
    """
    options = Options.of(prefer, require, block, paths, os.environ)
    registry = None if refresh else _registries.get(options)
    if registry is not None:
        return registry
    global _busy
    with _lock:
        if _busy:
            raise PluginError(
                "load_all() was called by a plugin that load_all() is just loading",
                hint="a plugin offers providers; it must not look for others while it is imported",
            )
        if refresh:
            importlib.invalidate_caches()
            _registries.clear()
            _surveys.clear()
        elif options in _registries:  # another thread was first
            return _registries[options]
        key = (options.block, options.paths, options.relative)
        _busy = True
        try:
            if key not in _surveys:
                _surveys[key] = take_survey(options)
        finally:
            _busy = False
        registry = _registries[options] = Registry(_surveys[key], options)
        return registry
