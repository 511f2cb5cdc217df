"""hotshoe's loader: finds compute backends, judges each one, ranks their devices, opens a backend.

    load_all(prefer=, require=, block=, allow=, paths=, system=, ggml=, timeout=, refresh=)  ->  Registry

Names are imported on first use: ``import hotshoe_loader`` costs nothing and finds nothing.

    load      load_all: options, and one registry for each set of them
    survey    the four stages in order, a verdict for every candidate:
    find        what is there, by metadata only
    vet         what may be used, before its code runs: by names here, by files in vet_files
    probe       what it is worth: trial runs vet_files and probe in a child process (children), cache keeps the report
    names       who may be called what
    rank        which device comes first
    ggml/     all that concerns ggml's native libraries, at each of these stages
    registry  Registry: the devices, the verdicts; select, open, unload, reload
    activate  a plugin that passed comes into this process, when a backend of it is opened
    explain   the same in words; doctor: and what to do about it
    catalog   the plugins this project publishes, for "pip install ..."
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotshoe_loader.load import load_all
    from hotshoe_loader.registry import Registry
    from hotshoe_loader.verdict import Outcome, Verdict

__all__ = ["Outcome", "Registry", "Verdict", "load_all"]

_MODULE = {"load_all": "load", "Registry": "registry", "Outcome": "verdict", "Verdict": "verdict"}


def __getattr__(name: str) -> Any:
    if name in _MODULE:
        return getattr(importlib.import_module(f"hotshoe_loader.{_MODULE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
